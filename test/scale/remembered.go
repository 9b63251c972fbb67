package scale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"ahprelay/broker/remember"
	"ahprelay/broker/store"
	"ahprelay/gateway/remembered"
	"ahprelay/test/load"
	"ahprelay/test/must"

	"github.com/nats-io/nats.go"
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
	defer must.Get(s.Fleet(ctx, c, s.Few))()
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
	return append(rows, Row{
		Name: "opening one of them", Got: opened.Round(10 * time.Microsecond).String(), Wanted: "≤ 300ms", Good: opened <= 300*time.Millisecond,
	}, Row{
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
	sizes   Sizes
	conns   []*nats.Conn // a connection for each tenant
	answers []chan *nats.Msg
	vault   remember.Vault
}

func newRememberingHosts(r *Relay, s Sizes) (w *rememberingHosts) {
	w = &rememberingHosts{sizes: s}
	defer must.Undo(w.close)
	for range s.Few {
		w.answers = append(w.answers, make(chan *nats.Msg, 1))
	}
	for i := range FleetTenants {
		nc := must.Get(connect(r.config.Keys, "nats://"+r.Server.Addr().String(), Tenant(i)))
		w.conns = append(w.conns, nc)
		must.Get(nc.Subscribe("ahp.v1."+Tenant(i)+".*.inbox.remember.*", func(msg *nats.Msg) {
			var host int
			if _, err := fmt.Sscan(msg.Subject[strings.LastIndexByte(msg.Subject, '.')+1:], &host); err == nil && host < len(w.answers) {
				select {
				case w.answers[host] <- msg:
				default: // a late answer to an earlier request
				}
			}
		}))
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
	failures := make([]error, w.sizes.Few)
	var running sync.WaitGroup
	for host := range w.sizes.Few {
		running.Go(func() { failures[host] = w.writeHost(ctx, host) })
	}
	running.Wait()
	return errors.Join(failures...)
}

func (w *rememberingHosts) writeHost(ctx context.Context, host int) error {
	nc := w.conns[host%FleetTenants]
	prefix := fmt.Sprintf("ahp.v1.%s.host-%d.", Tenant(host%FleetTenants), host)
	for i := range w.sizes.Sessions {
		record := &remember.Record{ID: remember.IDOf(fmt.Sprint("s:/", i)), Version: 1, Time: 1}
		if err := w.vault.Seal(record, make([]byte, sessionSize)); err != nil {
			return err
		}
		body, err := json.Marshal(remember.Request{Instance: fmt.Sprint("agent-", host), Op: remember.Put, Record: record})
		if err != nil {
			return err
		}
		if err := w.ask(ctx, nc, prefix, host, body); err != nil {
			return fmt.Errorf("host-%d: %w", host, err)
		}
	}
	return nil
}

// ask sends a request, and repeats it until an answer without an error comes.
func (w *rememberingHosts) ask(ctx context.Context, nc *nats.Conn, prefix string, host int, body []byte) error {
	for {
		if err := nc.PublishRequest(prefix+"ctl.remember", fmt.Sprintf("%sinbox.remember.%d", prefix, host), body); err != nil {
			return err
		}
		select {
		case msg := <-w.answers[host]:
			var answer remember.Answer
			if err := json.Unmarshal(msg.Data, &answer); err != nil || answer.Error == "" {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(answerWait):
		}
	}
}
