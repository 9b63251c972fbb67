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
	"ahprelay/internal/clock"
)

// A Key identifies a host's record.
type Key struct{ Tenant, Host, ID string }

// In returns the record's key in a store. prefix ends with a dot.
func (k Key) In(prefix string) string { return prefix + k.Tenant + "." + k.Host + "." + k.ID }

// Follow calls apply for each record of a host below a prefix, existing and future, until stop
// is called.
func Follow(s *store.Store, prefix string, apply func(Key, store.Record)) (stop func()) {
	return s.Follow(prefix, func(r store.Record) {
		if parts := strings.Split(strings.TrimPrefix(r.Key, prefix), "."); len(parts) == 3 {
			apply(Key{parts[0], parts[1], parts[2]}, r)
		}
	})
}

// sweepEvery is the interval between searches for records to remove.
const sweepEvery = time.Minute

// An OfficeConfig configures an [Office]. All fields are required.
type OfficeConfig struct {
	Tenants  *broker.Tenants
	Registry *registry.Registry
	Log      *slog.Logger
	Name     string // names the records in the log, such as "remembered sessions"

	// Subject returns the NATS subject for a host's requests.
	Subject func(tenant, host string) string
	// Do handles a host's request. serves returns an error unless the given host-agent instance
	// serves the host.
	Do func(ctx context.Context, tenant, host string, data []byte, serves func(instance string) error) (answer any, err error)
	// Refused returns the reply for an error.
	Refused func(error) any
	// Sweep removes old records. unknown reports whether the registry has forgotten a host.
	Sweep func(ctx context.Context, unknown func(tenant, host string) bool)
}

// An Office answers hosts' requests about their records. If this relay maintains the store, the
// Office also removes old records.
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

// Also makes Close call stop. Close calls such functions in reverse order.
func (o *Office) Also(stop func()) { o.stop = append(o.stop, stop) }

// Every calls do once per pause, one call at a time, until Close.
func (o *Office) Every(pause time.Duration, do func(context.Context)) {
	o.running.Go(func() {
		for clock.Sleep(o.ctx, pause) {
			do(o.ctx)
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

// Publish is [Desk.Publish].
func (o *Office) Publish(ctx context.Context, tenant, subject string, data []byte) error {
	return o.desk.Publish(ctx, tenant, subject, data)
}

// SweepNow removes old records, if this relay maintains the store.
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

var errForeignAgent = errors.New("this host-agent does not serve the host")

// answer handles a host's request, and returns the reply.
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
