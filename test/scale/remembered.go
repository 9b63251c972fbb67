package scale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"ahprelay/broker/remember"
	"ahprelay/broker/store"
	"ahprelay/gateway/remembered"
	"ahprelay/test/load"
	"ahprelay/test/must"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
)

// sessionSize is the size of a remembered session in bytes.
const sessionSize = 4 << 10

// rememberedSessions lets all hosts write the last state of all their sessions at once, and
// then measures the relays at rest.
func rememberedSessions(ctx context.Context, c *Cluster, s *Plan) (rows []Row) {
	c.Start(ctx)
	defer c.Stop()
	r := c.Relays[0]
	keeper, records := r.remember(ctx, c)
	defer records.Close()
	defer keeper.Close()
	defer s.fleet(ctx, c, s.Few)()
	must.Within("hosts come online", func() { must.Do(await(ctx, func() bool { return r.Online(FleetTenants) >= s.Few })) })
	w := newRememberingHosts(r, s.Sizes)
	defer w.close()
	heap, cpu, began := inUse(), processorTime(), time.Now()
	must.Do(w.writeAll(ctx))
	took := time.Since(began)
	cores := float64(processorTime()-cpu) / float64(took)
	stats := keeper.Stats()
	if stats.Records != s.Few*s.Sessions {
		must.Fail("the relay keeps %d records; want %d", stats.Records, s.Few*s.Sessions)
	}
	rows = append(rows, Row{
		Name: fmt.Sprintf("%d hosts write %d sessions of 4 KiB each at once, their side included", s.Few, s.Sessions),
		Got:  fmt.Sprintf("%v, %.2f cores, %d MiB of memory for the index", took.Round(10*time.Millisecond), cores, (int64(inUse())-int64(heap))>>20), Wanted: "≤ 1m0s, ≤ 2 cores", Good: took <= time.Minute && cores <= 2,
	})
	began = time.Now()
	record, _, err := keeper.Load(ctx, Tenant(0), "host-0", remember.IDOf("s:/0"))
	if err != nil || record == nil {
		must.Fail("the session of a host: %w", errors.Join(err, ctx.Err()))
	}
	opened := time.Since(began)
	load.Pause(ctx, s.Watch)
	still := keeper.Stats() == stats
	return append(rows, within("opening one of them", opened, 300*time.Millisecond, 10*time.Microsecond), Row{
		Name: fmt.Sprintf("records changed within %v at rest", s.Watch), Got: fmt.Sprint(!still), Wanted: "false", Good: still,
	})
}

// remember starts the part of a relay that stores remembered sessions.
func (r *Relay) remember(ctx context.Context, c *Cluster) (*remembered.Keeper, *store.Store) {
	records := must.Get(store.Start(ctx, store.Config{
		Conn: r.conn, Sealer: must.Get(c.Keys.Sealer("remembered")), Name: "remembered sessions",
		Stream: remembered.Stream, Subjects: remembered.Subjects, Sizes: true, MaxBytes: remembered.MaxBytes,
	}))
	defer must.Undo(records.Close)
	select {
	case <-records.Ready():
	case <-ctx.Done():
		must.Do(ctx.Err())
	}
	return remembered.Start(remembered.Config{Store: records, Tenants: r.tenants, Registry: r.Registry, Log: slog.New(slog.DiscardHandler)}), records
}

// A rememberingHosts writes remembered sessions in place of the hosts.
type rememberingHosts struct {
	sizes  Sizes
	conns  []*nats.Conn // a connection for each tenant
	askers []*asker     // of each host
	vault  remember.Vault
}

func newRememberingHosts(r *Relay, s Sizes) (w *rememberingHosts) {
	w = &rememberingHosts{sizes: s}
	defer must.Undo(w.close)
	for i := range FleetTenants {
		w.conns = append(w.conns, r.connect(Tenant(i)))
	}
	for i := range s.Few {
		w.askers = append(w.askers, askFor(w.conns[i%FleetTenants], Tenant(i%FleetTenants), fmt.Sprint("host-", i)))
	}
	w.vault = remember.Vault{Tenant: "t", Host: "h", Key: make([]byte, remember.KeySize)}
	w.vault.Signer = must.Get(remember.NewSigner())
	return w
}

func (w *rememberingHosts) close() {
	for _, nc := range w.conns {
		nc.Close()
	}
}

// writeAll writes all sessions of all hosts. A host writes its sessions one after
// another.
func (w *rememberingHosts) writeAll(ctx context.Context) error {
	var all errgroup.Group
	for host := range w.sizes.Few {
		all.Go(func() error { return w.writeHost(ctx, host) })
	}
	return all.Wait()
}

// rememberedWait is the wait for an answer about a session.
const rememberedWait = 10 * time.Second

// writeHost writes each session until an answer without an error comes.
func (w *rememberingHosts) writeHost(ctx context.Context, host int) error {
	for i := range w.sizes.Sessions {
		record := &remember.Record{ID: remember.IDOf(fmt.Sprint("s:/", i)), Version: 1, Time: 1}
		if err := w.vault.Seal(record, make([]byte, sessionSize)); err != nil {
			return err
		}
		body, err := json.Marshal(remember.Request{Instance: fmt.Sprint("agent-", host), Op: remember.Put, Record: record})
		for written := false; !written && err == nil; {
			var data []byte
			var answer remember.Answer
			if data, err = w.askers[host].ask(ctx, "remember", body, rememberedWait); err == nil {
				err = json.Unmarshal(data, &answer)
			}
			written = answer.Error == ""
		}
		if err != nil {
			return fmt.Errorf("host-%d: %w", host, err)
		}
	}
	return nil
}
