package embedded

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats-server/v2/server"

	"ahprelay/ahp"
	"ahprelay/broker"
)

// Gateways join the cluster of this server, which is a region then, to those of other
// regions. What servers of two regions send each other goes through one connection, once
// for all that hear it there, and only what somebody there hears.
//
// Servers of all regions have the same keys, and prove it to each other as those of a
// cluster do.
//
// JetStream is one for all regions, in which most servers that there are agree on where
// something is kept. What a region keeps for itself needs most of its own servers only,
// but to begin with, it takes most of all that Remotes and the routes name: so Remotes
// are to name all servers of the other regions, or regions that begin apart find out
// too late that they are not alone.
type Gateways struct {
	Region    string              // name of the cluster; default: there is one region only
	Listen    string              // host:port for servers of other regions, port 0 picks one; default: no gateways
	Advertise string              // host:port where those reach it; default: Listen
	Remotes   map[string][]string // host:port of the servers of other regions, by region
}

// CheckRegion reports what cannot be the name of a region.
func CheckRegion(name string) error { return ahp.CheckName("region", name) }

// check reports what does not go together.
func (g *Gateways) check() error {
	switch {
	case g.Region == "" && g.Listen == "" && len(g.Remotes) == 0:
		return nil
	case g.Region == "":
		return errors.New("a gateway needs the name of this region")
	case g.Listen == "" && len(g.Remotes) > 0:
		return errors.New("gateways to other regions need a listener for these too")
	}
	for region := range g.Remotes {
		if err := CheckRegion(region); err != nil {
			return fmt.Errorf("gateway: %w", err)
		}
	}
	return CheckRegion(g.Region)
}

// setGateways has the server be one of a region.
func setGateways(opts *server.Options, cfg Config) (err error) {
	g := cfg.Gateways
	if err := g.check(); err != nil || g.Listen == "" {
		return err
	}
	o := &opts.Gateway
	o.Name, o.Advertise = g.Region, g.Advertise
	if o.Host, o.Port, err = listenAddress("Gateways.Listen", g.Listen); err != nil {
		return err
	}
	if o.TLSConfig, err = cfg.Keys.ClusterTLS(); err != nil {
		return err
	}
	o.TLSTimeout = broker.DialTimeout.Seconds()
	o.WriteDeadline, o.WriteTimeout = writeDeadline, server.WriteTimeoutPolicyRetry
	for _, region := range slices.Sorted(maps.Keys(g.Remotes)) {
		if region == g.Region { // all regions can be told the same
			continue
		}
		remote := &server.RemoteGatewayOpts{Name: region, TLSConfig: o.TLSConfig.Clone(), TLSTimeout: o.TLSTimeout}
		for _, address := range g.Remotes[region] {
			u, err := routeURL(address)
			if err != nil {
				return fmt.Errorf("gateway to region %s: %w", region, err)
			}
			remote.URLs = append(remote.URLs, u)
		}
		o.Gateways = append(o.Gateways, remote)
	}
	return nil
}

// GatewayAddr returns the address for servers of other regions, "" if there is none.
func (s *Server) GatewayAddr() string {
	if a := s.nats.GatewayAddr(); a != nil {
		return a.String()
	}
	return ""
}

// ParseRemotes reads REGION=HOST:PORT, each of them one server of another region.
func ParseRemotes(list []string) (map[string][]string, error) {
	remotes := map[string][]string{}
	for _, entry := range list {
		region, address, ok := strings.Cut(entry, "=")
		if !ok {
			return nil, fmt.Errorf("gateway %q: want REGION=HOST:PORT", entry)
		}
		if err := CheckRegion(region); err != nil {
			return nil, fmt.Errorf("gateway %q: %w", entry, err)
		}
		if _, err := routeURL(address); err != nil {
			return nil, fmt.Errorf("gateway %q: %w", entry, err)
		}
		remotes[region] = append(remotes[region], address)
	}
	return remotes, nil
}
