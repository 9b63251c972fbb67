package embedded

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"ahprelay/broker"
)

// clusterName is the cluster name of all relays without regions: their keys keep
// clusters apart.
const clusterName = "ahp-relays"

// routePoll is the polling interval of AwaitRoute.
const routePoll = 20 * time.Millisecond

// A Cluster joins embedded servers: clients of all servers receive each other's
// messages. There is no leader, and no server depends on another.
//
// The servers of a cluster have the same keys and prove it: routes are TLS connections
// whose certificates are derived from the keys at both ends.
type Cluster struct {
	Listen string   // host:port for the other servers, port 0 picks one; default: no cluster
	Routes []string // nats://host:port or host:port of all servers; this server's own is ignored

	// Advertise is the host:port at which servers that learn about this server
	// indirectly reach it; default: Listen.
	Advertise string

	// Size is the number of servers that the cluster will have, this one included. Its
	// first start needs a majority of them. Default: this server and those in Routes.
	Size int
}

// listens returns the cluster listener in brackets, for errors.
func (c *Cluster) listens() string {
	if c.Listen == "" {
		return ""
	}
	return fmt.Sprintf(" (cluster %q)", c.Listen)
}

func setCluster(opts *server.Options, cfg Config) (err error) {
	c := cfg.Cluster
	if c.Listen == "" && opts.Gateway.Port != 0 { // NATS requires a region to be a cluster, even of one server
		c.Listen = "127.0.0.1:0"
	}
	if c.Listen == "" {
		if len(c.Routes) > 0 {
			return fmt.Errorf("a cluster route (%s) needs a cluster listener too", c.Routes[0])
		}
		return nil
	}
	o := &opts.Cluster
	if o.Host, o.Port, err = listenAddress("Cluster.Listen", c.Listen); err != nil {
		return err
	}
	if o.TLSConfig, err = cfg.Keys.ClusterTLS(); err != nil {
		return err
	}
	o.Advertise = c.Advertise
	o.Name = cmp.Or(cfg.Gateways.Region, clusterName)
	o.TLSTimeout = broker.DialTimeout.Seconds()
	o.NoAdvertise = true // host-agents know their relays
	o.PoolSize = 1       // one connection to each, for all tenants
	o.PingInterval, o.MaxPingsOut = broker.PingInterval, maxPingsOut
	o.WriteDeadline, o.WriteTimeout = writeDeadline, server.WriteTimeoutPolicyRetry
	for _, r := range c.Routes {
		u, err := routeURL(r)
		if err != nil {
			return err
		}
		opts.Routes = append(opts.Routes, u)
	}
	opts.Routes = withoutOwn(opts.Routes, o)
	if cfg.Store != "" && len(opts.Routes) == 0 {
		// JetStream requires a route. A server without routes gets one to itself.
		if err := routeToItself(o); err != nil {
			return err
		}
		opts.Routes = []*url.URL{{Scheme: "nats", Host: ownRoute(o)}}
	}
	// Routing waits for a client listener. That listener requires credentials too.
	opts.DontListen = false
	opts.Host, opts.Port = "127.0.0.1", server.RANDOM_PORT
	return nil
}

// expect makes a majority of a cluster's size start the cluster. At the first start, NATS
// elects a leader when as many servers are connected as a server has routes, so the list of
// routes gets the length of a majority. A shorter list gets routes to this server, which NATS
// gives up at the first connection. A longer list loses the servers just before this one:
// they have a route to this server, because all lists have the same order.
func expect(opts *server.Options, c Cluster, others []string) error {
	switch {
	case c.Size == 0:
		return nil
	case c.Size <= len(others):
		return fmt.Errorf("cluster of %d servers, but its routes name %d", c.Size, len(others)+1)
	}
	if err := routeToItself(&opts.Cluster); err != nil {
		return err
	}
	majority := c.Size/2 + 1
	first := slices.IndexFunc(c.Routes, func(r string) bool { // this server's place
		u, err := routeURL(r)
		return err == nil && !slices.Contains(others, u.Host)
	})
	if first > 0 && first < len(opts.Routes) {
		opts.Routes = slices.Concat(opts.Routes[first:], opts.Routes[:first])
	}
	opts.Routes = opts.Routes[:min(len(opts.Routes), majority)]
	for len(opts.Routes) < majority {
		opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats", Host: ownRoute(&opts.Cluster)})
	}
	return nil
}

// routeToItself replaces port 0 by a free port.
func routeToItself(o *server.ClusterOpts) error {
	if o.Port != server.RANDOM_PORT {
		return nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort(o.Host, "0"))
	if err != nil {
		return fmt.Errorf("cluster listener: %w", err)
	}
	o.Port = l.Addr().(*net.TCPAddr).Port
	return l.Close()
}

// ownRoute returns the address of a server's route to itself.
func ownRoute(o *server.ClusterOpts) string {
	return net.JoinHostPort(loopback(o.Host), strconv.Itoa(o.Port))
}

// loopback returns the loopback address for a listener on all addresses.
func loopback(host string) string {
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return "127.0.0.1"
	}
	return host
}

func routeURL(route string) (*url.URL, error) {
	if !strings.Contains(route, "://") {
		route = "nats://" + route
	}
	if err := broker.CheckURL(route, "nats"); err != nil {
		return nil, fmt.Errorf("cluster route: %w", err)
	}
	u, err := url.Parse(route)
	if err == nil && u.Port() == "" {
		err = fmt.Errorf("cluster route %s has no port", (&url.URL{Scheme: u.Scheme, Host: u.Host}).String())
	}
	return u, err
}

// ClusterAddr returns the address for other cluster servers, or "".
func (s *Server) ClusterAddr() string {
	if a := s.nats.ClusterAddr(); a != nil {
		return a.String()
	}
	return ""
}

// Linked reports whether another cluster server is connected.
func (s *Server) Linked() bool { return s.nats.NumRoutes() > 0 }

// AwaitRoute returns when another cluster server is connected, or ctx ends.
func (s *Server) AwaitRoute(ctx context.Context) error {
	tick := time.NewTicker(routePoll)
	defer tick.Stop()
	for !s.Linked() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

// Routes returns the connected servers' addresses without ports, by name.
func (s *Server) Routes() map[string]string {
	routes := map[string]string{}
	z, err := s.nats.Routez(nil)
	if err != nil {
		return routes
	}
	for _, r := range z.Routes {
		routes[r.RemoteName] = r.IP
	}
	return routes
}

// GiveUp removes a permanently absent server from the cluster: its JetStream data is
// copied to another server.
func (s *Server) GiveUp(ctx context.Context, name string) error {
	body, err := json.Marshal(server.JSApiMetaServerRemoveRequest{Server: name})
	if err != nil {
		return err
	}
	reply, err := s.askSystem(ctx, server.JSApiRemoveServer, body)
	if err != nil {
		return fmt.Errorf("give up server %s: %w", name, err)
	}
	var answer server.JSApiMetaServerRemoveResponse
	if err := json.Unmarshal(reply, &answer); err != nil {
		return fmt.Errorf("give up server %s: %w", name, err)
	}
	if answer.Error != nil {
		return fmt.Errorf("give up server %s: %w", name, answer.Error)
	}
	return nil
}
