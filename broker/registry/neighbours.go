package registry

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"
)

// Neighbours are the servers of the cluster that are connected to this relay's server.
type Neighbours interface {
	Name() string              // of this relay's server
	ClusterAddr() string       // its cluster address
	Routes() map[string]string // addresses without ports of the connected servers, by name

	// GiveUp removes a server from those that hold the store.
	GiveUp(ctx context.Context, name string) error
}

// servers returns a function that counts the neighbours, or nil without a cluster.
func (r *Registry) servers() func() int {
	if r.cfg.Neighbours == nil {
		return nil
	}
	return func() int { return len(r.cfg.Neighbours.Routes()) }
}

// probeTimeout bounds the wait for a refusal. A server that is cut off or paused does
// not refuse.
const probeTimeout = 2 * time.Second

// missNeighbours probes the address of each relay whose server has lost its
// connection. Only a refusal proves that the relay has crashed. A relay that is cut
// off or paused is silent, and still has its clients when it returns.
func (r *Registry) missNeighbours(now time.Time) {
	if r.cfg.Neighbours == nil {
		return
	}
	routes := r.cfg.Neighbours.Routes()
	r.mu.RLock()
	defer r.mu.RUnlock()
	for instance, p := range r.relays.peers {
		_, here := routes[p.Node]
		ip, was := r.routed[p.Node]
		_, gone := r.relays.gone[instance]
		if p.Node == "" || p.Bye || instance == r.cfg.Instance || here || !was || gone {
			continue
		}
		address := net.JoinHostPort(ip, p.Port)
		r.running.Go(func() { r.probe(instance, address) })
	}
	for node, ip := range routes {
		r.routed[node] = ip
	}
}

// probe checks whether a relay's address refuses connections.
func (r *Registry) probe(instance, address string) {
	ctx, cancel := context.WithTimeout(r.life, probeTimeout)
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
	case r.probed <- instance:
	case <-r.life.Done():
	}
}

// markCrashed records the proof that a relay has crashed.
func (r *Registry) markCrashed(instance string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.relays.peers[instance]; p != nil {
		delete(r.routed, p.Node)
		r.relays.loseLocked(instance, "its address refuses connections", time.Now())
	}
}
