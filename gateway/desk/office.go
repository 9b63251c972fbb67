package desk

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/broker"
	"ahprelay/broker/registry"
	"ahprelay/broker/store"
)

// A Key names a record of a host.
type Key struct{ Tenant, Host, ID string }

// In returns the record's key in a store. Prefix ends with a dot.
func (k Key) In(prefix string) string { return prefix + k.Tenant + "." + k.Host + "." + k.ID }

// Follow calls apply for each record of hosts below a prefix, present and to come, until stop.
func Follow(s *store.Store, prefix string, apply func(Key, store.Record)) (stop func()) {
	return s.Follow(prefix, func(r store.Record) {
		if parts := strings.Split(strings.TrimPrefix(r.Key, prefix), "."); len(parts) == 3 {
			apply(Key{parts[0], parts[1], parts[2]}, r)
		}
	})
}

// sweepEvery is the time between two searches for records that are to be removed.
const sweepEvery = time.Minute

// An OfficeConfig configures an [Office]. All fields are required.
type OfficeConfig struct {
	Tenants  *broker.Tenants
	Registry *registry.Registry
	Log      *slog.Logger
	Name     string // of the records, for the log: remembered sessions

	// Subject returns the subject of a host's requests.
	Subject func(tenant, host string) string
	// Do carries out a host's request. Serves rejects an instance of a host-agent that does not
	// serve the host.
	Do func(ctx context.Context, tenant, host string, data []byte, serves func(instance string) error) (answer any, err error)
	// Refused returns the answer for an error.
	Refused func(error) any
	// Sweep removes the records that are to be removed. Unknown reports whether the registry has forgotten a
	// host.
	Sweep func(ctx context.Context, unknown func(tenant, host string) bool)
}

// An Office answers the requests of hosts about their records, and sweeps the records, if this relay maintains the
// store.
type Office struct {
	cfg     OfficeConfig
	desk    *Desk
	ctx     context.Context
	cancel  context.CancelFunc
	stop    []func()
	running sync.WaitGroup
}

// Open opens an Office. Close closes it.
func Open(cfg OfficeConfig) *Office {
	o := &Office{cfg: cfg}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	o.desk = New(cfg.Tenants, cfg.Subject, o.answer, cfg.Log)
	o.stop = append(o.stop, o.desk.Start())
	o.Every(sweepEvery, o.SweepNow)
	return o
}

// Also has Close call stop. Functions are called in reverse order.
func (o *Office) Also(stop func()) { o.stop = append(o.stop, stop) }

// Every does something again and again, until the Office closes.
func (o *Office) Every(pause time.Duration, do func(context.Context)) {
	o.running.Go(func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for {
			select {
			case <-o.ctx.Done():
				return
			case <-tick.C:
				do(o.ctx)
			}
		}
	})
}

// Close ends the Office and waits for its goroutines.
func (o *Office) Close() {
	o.cancel()
	for _, stop := range slices.Backward(o.stop) {
		stop()
	}
	o.running.Wait()
}

// Publish sends a message to a tenant's host-agents, if this relay serves the tenant.
func (o *Office) Publish(tenant, subject string, data []byte) error {
	return o.desk.Publish(tenant, subject, data)
}

// SweepNow sweeps the records.
func (o *Office) SweepNow(ctx context.Context) {
	if o.cfg.Registry.Unread() != nil || !o.cfg.Registry.Maintains() {
		return
	}
	asked := map[Key]bool{}
	o.cfg.Sweep(ctx, func(tenant, host string) bool {
		of := Key{Tenant: tenant, Host: host}
		if _, done := asked[of]; !done {
			asked[of] = errors.Is(o.cfg.Registry.Find(ctx, tenant, host), registry.ErrUnknownHost)
		}
		return asked[of]
	})
}

// errForeignAgent reports a request of a host-agent that does not serve the host.
var errForeignAgent = errors.New("this host-agent does not serve the host")

// answer answers a request of a host.
func (o *Office) answer(ctx context.Context, tenant, host string, data []byte) []byte {
	answer, err := o.cfg.Do(ctx, tenant, host, data, func(instance string) error {
		if known, ok := o.cfg.Registry.Lookup(tenant, host); !ok || known.AgentInstance != instance {
			return errForeignAgent
		}
		return nil
	})
	if err != nil {
		o.cfg.Log.Debug("request refused", "records", o.cfg.Name, "tenant", tenant, "host", host, "error", err)
		answer = o.cfg.Refused(err)
	}
	body, _ := json.Marshal(answer) // all fields of answers can be encoded
	return body
}
