package embedded

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"ahprelay/broker"
)

// clusterName is the same at all relays that have no regions: their keys keep clusters
// apart.
const clusterName = "ahp-relays"

// routePoll is how often AwaitRoute looks.
const routePoll = 20 * time.Millisecond

// A ClusterConfig joins embedded servers: what one of them is sent, clients of
// the others get too. They need nobody in the lead, and none of the others.
//
// Servers of a cluster have the same keys, and prove it to each other: routes
// are TLS connections with a certificate that is derived from the keys on both
// ends.
type Cluster struct {
	Listen string   // host:port for the other servers, port 0 picks one; default: no cluster
	Routes []string // nats://host:port or host:port of some others, or all; this server itself may be among them

	// Advertise is the host:port at which servers that hear of this one through others reach
	// it; default: Listen.
	Advertise string
}

// listens describes the listener for messages.
func (c *Cluster) listens() string {
	if c.Listen == "" {
		return ""
	}
	return fmt.Sprintf(" (cluster %q)", c.Listen)
}

func setCluster(opts *server.Options, cfg Config) (err error) {
	c := cfg.Cluster
	if c.Listen == "" && opts.Gateway.Port != 0 { // NATS wants a region to be a cluster, of one if need be
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
	o.PoolSize = 1       // one connection to each, whatever the tenant
	o.PingInterval, o.MaxPingsOut = broker.PingInterval, maxPingsOut
	o.WriteDeadline, o.WriteTimeout = writeDeadline, server.WriteTimeoutPolicyRetry
	if cfg.Store != "" && len(c.Routes) == 0 {
		// JetStream wants to know of some other server. One that is found by others
		// knows of itself only.
		if err := routeToItself(o); err != nil {
			return err
		}
		c.Routes = []string{net.JoinHostPort(loopback(o.Host), strconv.Itoa(o.Port))}
	}
	for _, r := range c.Routes {
		u, err := routeURL(r)
		if err != nil {
			return err
		}
		opts.Routes = append(opts.Routes, u)
	}
	// The server waits for a listener of its own before it starts to route. It takes
	// nobody in without good credentials there either.
	opts.DontListen = false
	opts.Host, opts.Port = "127.0.0.1", server.RANDOM_PORT
	return nil
}

// routeToItself has a port chosen now that is to be any.
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

// loopback returns where a listener on all addresses is found.
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

// ClusterAddr returns the address for other servers of the cluster, "" if there
// is none.
func (s *Server) ClusterAddr() string {
	if a := s.nats.ClusterAddr(); a != nil {
		return a.String()
	}
	return ""
}

// Linked reports whether another server of the cluster is connected.
func (s *Server) Linked() bool { return s.nats.NumRoutes() > 0 }

// AwaitRoute returns when another server of the cluster is connected, or ctx
// ends.
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

// Routes returns the servers of the cluster that are connected: their addresses by
// their names, without ports.
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

// GiveUp has the servers of the cluster do without one of them, which is away for
// good: what it has of JetStream is copied to another.
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
