package embedded

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"ahprelay/broker"
	"ahprelay/internal/clock"
)

// clusterName is the cluster name of all relays without regions. Different clusters have
// different keys, so they cannot connect to each other.
const clusterName = "ahp-relays"

// routePoll is the polling interval of AwaitRoute.
const routePoll = 20 * time.Millisecond

// Ports for a cluster listener without a port: see routeToItself.
const (
	firstPort, outgoingPorts = 20000, 32768
	portTries                = 100
)

// A Cluster connects embedded servers: clients of any server receive messages from clients of
// all. Messages need no leader, and no server depends on another.
//
// All servers of a cluster have the same keys, and prove it to each other: routes are TLS
// connections with certificates derived from the keys.
type Cluster struct {
	Listen string   // host:port for routes from other servers, port 0 picks a free one; default: no cluster
	Routes []string // nats://host:port or host:port of all servers; this server's own entry is ignored

	// Advertise is the host:port under which servers reach this server if they do not have it
	// in their Routes; default: Listen, or its port at the address that those servers see.
	Advertise string

	// Size is the planned number of servers, including this one. The first start of the
	// cluster needs a majority of them. Default: this server and those in Routes.
	Size int
}

// listens returns the flags of the listeners for other servers in parentheses, for errors: NATS names its ports only.
func (cfg *Config) listens() string {
	switch {
	case cfg.Cluster.Listen == "" && cfg.Gateways.Listen == "":
		return ""
	case cfg.Gateways.Listen == "":
		return fmt.Sprintf(" (--cluster-listen %s)", cfg.Cluster.Listen)
	}
	return fmt.Sprintf(" (--cluster-listen %s, --gateway-listen %s)", cmp.Or(cfg.Cluster.Listen, "none"), cfg.Gateways.Listen)
}

func setCluster(opts *server.Options, cfg Config) (err error) {
	c := cfg.Cluster
	if c.Listen == "" && opts.Gateway.Port != 0 { // NATS requires a cluster for gateways, even if it has one server
		c.Listen = "127.0.0.1:0"
	}
	if c.Listen == "" {
		if len(c.Routes) > 0 {
			return fmt.Errorf("a cluster route (%s) needs a cluster listener too", c.Routes[0])
		}
		return nil
	}
	o := &opts.Cluster
	if o.Host, o.Port, err = listenAddress("--cluster-listen", c.Listen); err != nil {
		return err
	}
	if o.TLSConfig, err = cfg.Keys.ClusterTLS(); err != nil {
		return err
	}
	o.Advertise = c.Advertise
	if o.Advertise == "" && o.Host == loopback(o.Host) { // otherwise servers pass on the address from which a route comes
		o.Advertise = c.Listen
	}
	o.Name = cmp.Or(cfg.Gateways.Region, clusterName)
	o.TLSTimeout = broker.DialTimeout.Seconds()
	o.NoAdvertise = true // host-agents are configured with their relays
	o.PoolSize = 1       // one connection to each server, for all tenants
	o.PingInterval, o.MaxPingsOut = broker.PingInterval, maxPingsOut
	o.WriteDeadline, o.WriteTimeout = writeDeadline, server.WriteTimeoutPolicyRetry
	for _, r := range c.Routes {
		u, err := routeURL(r)
		if err != nil {
			return fmt.Errorf("--cluster-route: %w", err)
		}
		opts.Routes = append(opts.Routes, u)
	}
	_, opts.Routes = splitRoutes(opts.Routes, o) // NATS counts routes as servers that the first start needs
	if cfg.Store != "" && len(opts.Routes) == 0 {
		// JetStream requires a route. If there is none, the server gets a route to itself.
		if err := routeToItself(o); err != nil {
			return err
		}
		opts.Routes = []*url.URL{{Scheme: "nats", Host: ownRoute(o)}}
	}
	// Routes need a client listener. It requires credentials like all listeners.
	opts.DontListen = false
	opts.Host, opts.Port = "127.0.0.1", server.RANDOM_PORT
	return nil
}

// expect lets a cluster start as soon as a majority of its planned size is connected. At the
// first start, NATS elects a leader when as many servers are connected as a server has
// routes. So expect makes the list of routes as long as a majority. It shortens a long list by
// the servers listed just before this one. The removed servers still connect: all lists have the
// same order, so each removed server keeps a route to this one.
func expect(opts *server.Options, c Cluster, others []string) error {
	switch {
	case c.Size == 0:
		return nil
	case c.Size <= len(others):
		return fmt.Errorf("cluster of %d servers, but the routes and this server make %d", c.Size, len(others)+1)
	}
	majority := c.Size/2 + 1
	first := slices.IndexFunc(c.Routes, func(r string) bool { // this server's position
		u, err := routeURL(r)
		return err == nil && !slices.Contains(others, u.Host)
	})
	if first > 0 && first < len(opts.Routes) {
		opts.Routes = slices.Concat(opts.Routes[first:], opts.Routes[:first])
	}
	opts.Routes = opts.Routes[:min(len(opts.Routes), majority)]
	return lengthen(opts, majority)
}

// lengthen extends the list of routes with routes to this server itself, which NATS gives up at
// the first connection.
func lengthen(opts *server.Options, length int) error {
	if err := routeToItself(&opts.Cluster); err != nil {
		return err
	}
	for len(opts.Routes) < length {
		opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats", Host: ownRoute(&opts.Cluster)})
	}
	return nil
}

// routeToItself gives a listener without a port the port that the server's route to itself needs.
// The port is below those of outgoing connections (from 32768 on Linux, from 49152 elsewhere), so
// none of them takes it before NATS listens.
func routeToItself(o *server.ClusterOpts) error {
	if o.Port != server.RANDOM_PORT {
		return nil
	}
	var err error
	for range portTries {
		port := firstPort + rand.IntN(outgoingPorts-firstPort)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort(o.Host, strconv.Itoa(port))); err == nil {
			o.Port = port
			return l.Close()
		}
	}
	return fmt.Errorf("cluster listener: %w", err)
}

// ownRoute returns the address under which a server reaches itself.
func ownRoute(o *server.ClusterOpts) string {
	return net.JoinHostPort(loopback(o.Host), strconv.Itoa(o.Port))
}

// loopback returns the loopback address if the listener is on all addresses, else host.
func loopback(host string) string {
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return "127.0.0.1"
	}
	return host
}

// CheckRoutes returns an error for a malformed address of a server.
func CheckRoutes(routes []string) error {
	for _, route := range routes {
		if _, err := routeURL(route); err != nil {
			return err
		}
	}
	return nil
}

func routeURL(route string) (*url.URL, error) {
	if !strings.Contains(route, "://") {
		route = "nats://" + route
	}
	if err := broker.CheckURL(route, "nats"); err != nil {
		return nil, err
	}
	u, err := url.Parse(route)
	if err == nil && u.Port() == "" {
		err = fmt.Errorf("%s has no port", (&url.URL{Scheme: u.Scheme, Host: u.Host}).String())
	}
	return u, err
}

// ClusterAddr returns this server's address for routes, or "".
func (s *Server) ClusterAddr() string {
	if a := s.nats.ClusterAddr(); a != nil {
		return a.String()
	}
	return ""
}

// Linked reports whether a different server of the cluster is connected.
func (s *Server) Linked() bool { return s.nats.NumRoutes() > 0 }

// AwaitRoute returns when a different server of the cluster is connected, or ctx ends.
func (s *Server) AwaitRoute(ctx context.Context) error {
	for !s.Linked() {
		if !clock.Sleep(ctx, routePoll) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// Routes returns the addresses of connected servers without ports, by server name.
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

// GiveUp removes a permanently lost server from the cluster. JetStream then copies its data
// to another server.
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
