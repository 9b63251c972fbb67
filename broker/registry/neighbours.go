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
	routed map[string]string // addresses of current and previous neighbours, by name
	probed chan string       // crashed relay instances: their address refuses connections
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

// probeLost probes the address of each relay with a lost server connection. Only a
// refusal proves a crash. A disconnected or paused relay is silent, and still has its
// clients when it returns.
func (pr *prober) probeLost(now time.Time) {
	if pr.r.cfg.Neighbours == nil {
		return
	}
	routes := pr.r.cfg.Neighbours.Routes()
	pr.r.mu.RLock()
	defer pr.r.mu.RUnlock()
	for instance, p := range pr.r.relays.peers {
		_, here := routes[p.Node]
		ip, was := pr.routed[p.Node]
		_, gone := pr.r.relays.gone[instance]
		if p.Node == "" || p.Bye || instance == pr.r.cfg.Instance || here || !was || gone {
			continue
		}
		address := net.JoinHostPort(ip, p.Port)
		pr.r.running.Go(func() { pr.probe(instance, address) })
	}
	for node, ip := range routes {
		pr.routed[node] = ip
	}
}

// probe checks whether a relay's address refuses connections.
func (pr *prober) probe(instance, address string) {
	ctx, cancel := context.WithTimeout(pr.r.life, probeTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err == nil {
		_ = c.Close()
		return
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return
	}
	select {
	case pr.probed <- instance:
	case <-pr.r.life.Done():
	}
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
