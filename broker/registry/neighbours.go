package registry

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"
)

// Neighbours are the servers of a cluster that this relay's server is connected to.
type Neighbours interface {
	Name() string              // of this relay's server
	ClusterAddr() string       // where it listens for others
	Routes() map[string]string // addresses of those that are connected, without ports, by name

	// GiveUp takes a server out of those that have the store.
	GiveUp(ctx context.Context, name string) error
}

// servers returns what counts the neighbours, nil if there can be none.
func (r *Registry) servers() func() int {
	if r.cfg.Neighbours == nil {
		return nil
	}
	return func() int { return len(r.cfg.Neighbours.Routes()) }
}

// probeTimeout is how long a server may take to refuse a connection. One that is cut
// off or stopped does not.
const probeTimeout = 2 * time.Second

// missNeighbours looks for relays whose server was connected and is not, and asks
// there whether anybody listens. Only an answer that nobody does is proof that a relay
// has crashed: the silence of one that is cut off or stopped is over when it is back,
// and its clients are still there.
func (r *Registry) missNeighbours(now time.Time) {
	if r.cfg.Neighbours == nil {
		return
	}
	routes := r.cfg.Neighbours.Routes()
	r.mu.RLock()
	defer r.mu.RUnlock()
	for instance, p := range r.peers {
		_, here := routes[p.Node]
		ip, was := r.routed[p.Node]
		_, gone := r.gone[instance]
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

// probe asks whether anybody listens where a relay did.
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

// proved takes it that a relay is gone.
func (r *Registry) proved(instance string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.peers[instance]; p != nil {
		delete(r.routed, p.Node)
		r.loseLocked(instance, "nobody listens where it did", time.Now())
	}
}
