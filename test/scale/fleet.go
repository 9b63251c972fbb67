package scale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/link"
	"ahprelay/broker/registry"

	"github.com/nats-io/nats.go"
)

// A Fleet sends the lease requests of many host-agents. Each has a different host.
type Fleet struct {
	KeyDir string   // directory of the relays' keys
	URLs   []string // URLs of the relays, with their names after #; hosts are spread over them
	Hosts  int      // they belong to FleetTenants tenants
	Renew  time.Duration

	keys  *auth.Keys
	hosts []simulated
}

// A simulated is the state of a host-agent in the fleet.
type simulated struct {
	mu     sync.Mutex
	conn   *nats.Conn
	host   string // prefix of the host's subjects
	inbox  string // subject for answers; like a host-agent's, only this connection receives it
	home   string // relay to which the host-agent is connected
	seq    uint64
	keeper string
	rests  time.Time // before this time, the host-agent sends no request
}

// Attend makes each relay treat its share of the hosts as connected to its own port.
func (c *Cluster) Attend(hosts int) {
	for i := range hosts {
		c.Relays[i%len(c.Relays)].Registry.Attend(&registry.Line{
			Tenant: Tenant(i % FleetTenants), Host: fmt.Sprintf("host-%d", i), Instance: fmt.Sprintf("agent-%d", i),
			Heard: time.Now, Cut: func() {},
		})
	}
}

// Tenant returns the name of tenant i in a fleet.
func Tenant(i int) string { return fmt.Sprintf("tenant-%d", i) }

// Run requests a lease for each host, and renews the leases until ctx ends.
func (f *Fleet) Run(ctx context.Context) (err error) {
	if f.keys, err = auth.ExistingKeys(f.KeyDir); err != nil {
		return err
	}
	f.hosts = make([]simulated, f.Hosts)
	type at struct{ tenant, url int }
	conns := map[at]*nats.Conn{}
	defer func() {
		for _, nc := range conns {
			nc.Close()
		}
	}()
	for i := range f.hosts {
		where := at{i % FleetTenants, i % len(f.URLs)}
		if conns[where] == nil {
			nc, err := f.connect(where.tenant, where.url)
			if err != nil {
				return err
			}
			conns[where] = nc
		}
		f.hosts[i].seq = uint64(time.Now().UnixMilli()) // larger than in every earlier run of the fleet
		_, f.hosts[i].home, _ = strings.Cut(f.URLs[where.url], "#")
		f.hosts[i].keeper = f.hosts[i].home
		f.hosts[i].conn, f.hosts[i].host = conns[where], fmt.Sprintf("ahp.v1.%s.host-%d.", Tenant(where.tenant), i)
		f.hosts[i].inbox = fmt.Sprintf("%sinbox.fleet-%d.%d", f.hosts[i].host, where.url, i)
	}
	return f.drive(ctx)
}

// connect connects a tenant's hosts to a relay. They share a connection of a relay's
// user, whose permissions stand in for those of each host-agent's own user.
func (f *Fleet) connect(tenant, url int) (*nats.Conn, error) {
	address, _, _ := strings.Cut(f.URLs[url], "#")
	nc, err := connect(f.keys, address, Tenant(tenant),
		nats.MaxReconnects(-1), nats.ReconnectWait(200*time.Millisecond), nats.RetryOnFailedConnect(true), nats.IgnoreAuthErrorAbort(), nats.Timeout(10*time.Second))
	if err != nil {
		return nil, err
	}
	_, err = nc.Subscribe(fmt.Sprintf("ahp.v1.%s.*.inbox.fleet-%d.*", Tenant(tenant), url), f.answered)
	return nc, err
}

// answered handles a relay's answer to a lease request.
func (f *Fleet) answered(msg *nats.Msg) {
	var i int
	var answer struct {
		Result, Relay string
		Every, After  int64
	}
	if _, err := fmt.Sscan(msg.Subject[strings.LastIndexByte(msg.Subject, '.')+1:], &i); err != nil {
		return
	}
	_ = json.Unmarshal(msg.Data, &answer) // an empty answer means that the relay has gone
	h := &f.hosts[i]
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keeper, h.rests = "", time.Now().Add(time.Duration(answer.After)*time.Millisecond)
	if answer.Result == "held" {
		h.keeper, h.rests = answer.Relay, time.Now().Add(time.Duration(answer.Every)*time.Millisecond)
		if answer.Every == 0 {
			h.keeper = h.home
		}
	}
}

// drive sends a request for each host once in each renewal interval, or less often if
// the relay permits.
func (f *Fleet) drive(ctx context.Context) error {
	const step = 10 * time.Millisecond
	tick := time.NewTicker(step)
	defer tick.Stop()
	due, start := 0.0, time.Now()
	for next := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for due = float64(f.Hosts) * float64(time.Since(start)) / float64(f.Renew); float64(next) < due; next++ {
			// If a broken connection loses a request, the host's next request replaces it.
			if err := f.ask(next % f.Hosts); errors.Is(err, nats.ErrConnectionClosed) {
				return err
			}
		}
	}
}

func (f *Fleet) ask(i int) error {
	h := &f.hosts[i]
	h.mu.Lock()
	if time.Now().Before(h.rests) {
		h.mu.Unlock()
		return nil
	}
	h.seq++
	subject := h.host + "ctl.lease"
	if h.keeper != "" {
		subject += "." + h.keeper
	}
	body := fmt.Sprintf(`{"op":"hold","instance":"agent-%d","seq":%d,"presence":{"state":"online","agentVersion":"1","wire":[%d,%d]}}`, i, h.seq, link.WireMin, link.WireMax)
	h.mu.Unlock()
	return h.conn.PublishRequest(subject, h.inbox, []byte(body))
}
