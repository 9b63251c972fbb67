package registry

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"
)

// Neighbours are the NATS servers of the cluster that are connected to this relay's
// server.
type Neighbours interface {
	Name() string              // name of this relay's server
	ClusterAddr() string       // cluster address of this relay's server
	Routes() map[string]string // addresses of connected servers without ports, by name
	Others() []string          // configured addresses of the other servers

	// GiveUp removes a server from the cluster that stores the copies.
	GiveUp(ctx context.Context, name string) error
}

// A prober detects crashed relays by connecting to their NATS servers' addresses.
// Registry.run owns it.
type prober struct {
	r      *Registry
	routed map[string]*neighbour // servers that are or were connected, by name
	probed chan probe            // probes with a result
}

// A neighbour is a server that is or was connected.
type neighbour struct {
	ip       string
	accepted string    // the last address that accepted a connection from this relay
	asked    time.Time // when it was last probed while connected
}

// A probe is an attempt to connect to a relay's address.
type probe struct {
	instance, node, address string
	lost                    bool // the server was not connected when the probe began
	refused                 bool
}

// servers returns a function that counts the neighbours; nil without a cluster.
func (pr *prober) servers() func() int {
	if pr.r.cfg.Neighbours == nil {
		return nil
	}
	return func() int { return len(pr.r.cfg.Neighbours.Routes()) }
}

// probeTimeout bounds the wait for a refusal. A server that is cut off or paused neither
// accepts nor refuses.
const probeTimeout = 2 * time.Second

// acceptEvery is the interval at which a connected neighbour is probed until its address
// has accepted a connection.
const acceptEvery = 10 * time.Second

// probeLost probes the addresses of relays whose servers are no longer connected. Only a
// refused connection can prove a crash: a relay that is cut off or paused does not
// refuse, and may return with its clients. A firewall or address translation may also
// refuse, although the relay runs. A refusal therefore counts in two cases only: the
// address has accepted a connection before, or the relay's session is silent in the store
// too. The second case covers a relay that ended before this relay could probe it. Each
// state of a relay that forbids a verdict has its branch.
func (pr *prober) probeLost(now time.Time) {
	if pr.r.cfg.Neighbours == nil {
		return
	}
	routes := pr.r.cfg.Neighbours.Routes()
	for node, ip := range routes {
		if n := pr.routed[node]; n == nil || n.ip != ip {
			pr.routed[node] = &neighbour{ip: ip}
		}
	}
	pr.r.mu.RLock()
	defer pr.r.mu.RUnlock()
	for instance, p := range pr.r.relays.peers {
		n := pr.routed[p.Node]
		_, here := routes[p.Node]
		_, gone := pr.r.relays.gone[instance]
		if p.Node == "" || p.Bye || instance == pr.r.cfg.Instance || n == nil || gone {
			continue
		}
		address := net.JoinHostPort(n.ip, p.Port)
		proven := n.accepted == address
		if here && (proven || now.Sub(n.asked) < acceptEvery) || !here && !proven && !p.silent(absentAfter) {
			continue
		}
		if here {
			n.asked = now
		}
		asks := probe{instance: instance, node: p.Node, address: address, lost: !here} // copies, because p may change after the lock is released
		pr.r.running.Go(func() { pr.probe(asks) })
	}
}

// probe connects to a relay's address and reports the result to Registry.run.
func (pr *prober) probe(p probe) {
	ctx, cancel := context.WithTimeout(pr.r.life, probeTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", p.address)
	if err == nil {
		_ = c.Close()
	}
	p.refused = errors.Is(err, syscall.ECONNREFUSED)
	if err != nil && !p.refused {
		return
	}
	select {
	case pr.probed <- p:
	case <-pr.r.life.Done():
	}
}

func (pr *prober) take(p probe) {
	n := pr.routed[p.node]
	switch {
	case n == nil:
	case !p.refused:
		n.accepted = p.address
	case n.accepted == p.address || p.lost && pr.silent(p.instance):
		pr.markCrashed(p.instance)
	}
}

// silent reports whether a relay's session has not changed in the store for several beats
// of this relay.
func (pr *prober) silent(instance string) bool {
	pr.r.mu.RLock()
	defer pr.r.mu.RUnlock()
	p := pr.r.relays.peers[instance]
	return p != nil && p.silent(absentAfter)
}

func (pr *prober) markCrashed(instance string) {
	pr.r.mu.Lock()
	defer pr.r.mu.Unlock()
	if p := pr.r.relays.peers[instance]; p != nil {
		delete(pr.routed, p.Node)
		pr.r.relays.loseLocked(instance, "its address refuses connections", time.Now())
	}
}
