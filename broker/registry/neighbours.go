package registry

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"
)

// Neighbours are the cluster's connected servers.
type Neighbours interface {
	Name() string              // of this relay's server
	ClusterAddr() string       // its cluster address
	Routes() map[string]string // connected servers' addresses without ports, by name
	Others() []string          // configured addresses of the other servers

	// GiveUp removes a server from the store's placement.
	GiveUp(ctx context.Context, name string) error
}

// A prober finds crashed neighbours. Registry.run owns it.
type prober struct {
	r      *Registry
	routed map[string]*neighbour // current and previous neighbours, by name
	probed chan probe            // ended probes that prove something
}

// A neighbour is a server that has been connected.
type neighbour struct {
	ip       string
	accepted string    // the last address that accepted a connection of this relay
	asked    time.Time // the last probe of a connected neighbour
}

// A probe is a connection that a relay's address accepted or refused.
type probe struct {
	instance, node, address string
	lost                    bool // the server connection was lost when it was asked
	refused                 bool
}

// servers returns a function counting the neighbours, or nil without a cluster.
func (pr *prober) servers() func() int {
	if pr.r.cfg.Neighbours == nil {
		return nil
	}
	return func() int { return len(pr.r.cfg.Neighbours.Routes()) }
}

// probeTimeout bounds the wait for a refusal. A disconnected or paused server does not
// refuse.
const probeTimeout = 2 * time.Second

// acceptEvery is the interval of probes of a connected neighbour whose address has not
// accepted one yet.
const acceptEvery = 10 * time.Second

// probeLost probes the address of each relay with a lost server connection. Only a
// refusal proves a crash: a disconnected or paused relay is silent, and still has its
// clients when it returns. A firewall or address translation may refuse for a running
// relay. A refusal therefore counts only at an address that accepted a connection before,
// or if the store has not heard of the relay either: it may have ended before this relay
// could probe it.
// Each state of a relay that forbids a verdict has its branch.
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
		asks := probe{instance: instance, node: p.Node, address: address, lost: !here} // p changes when the lock is free
		pr.r.running.Go(func() { pr.probe(asks) })
	}
}

// probe checks whether a relay's address accepts or refuses connections.
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

// take records what a probe has proven.
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

// silent reports whether the store has not heard of a relay for several of this relay's
// beats.
func (pr *prober) silent(instance string) bool {
	pr.r.mu.RLock()
	defer pr.r.mu.RUnlock()
	p := pr.r.relays.peers[instance]
	return p != nil && p.silent(absentAfter)
}

// markCrashed records a proven crash.
func (pr *prober) markCrashed(instance string) {
	pr.r.mu.Lock()
	defer pr.r.mu.Unlock()
	if p := pr.r.relays.peers[instance]; p != nil {
		delete(pr.routed, p.Node)
		pr.r.relays.loseLocked(instance, "its address refuses connections", time.Now())
	}
}
