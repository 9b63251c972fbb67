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

// Gateways connect this server's cluster to clusters elsewhere; each cluster is then
// called a region. A message between two regions crosses one connection, once for all
// receivers, and only if the other region has a receiver.
//
// All servers of all regions have the same keys, and prove it to each other, like the
// servers of a cluster.
//
// JetStream spans all regions. A majority of all servers decides where data is placed;
// a majority of a region's servers changes that region's data. The first start needs a
// majority of all servers in Remotes and routes. Remotes must name every server of the
// other regions. Otherwise regions which start separately do not notice each other in
// time.
type Gateways struct {
	Region    string              // name of this server's cluster; default: there are no regions
	Listen    string              // host:port for servers of other regions, port 0 picks a free one; default: no gateways
	Advertise string              // host:port at which servers of other regions reach this server; default: Listen
	Remotes   map[string][]string // host:port of each server in other regions, by region
}

// CheckRegion rejects an invalid region name.
func CheckRegion(name string) error { return ahp.CheckName("region", name) }

func (g *Gateways) check() error {
	switch {
	case g.Region == "" && g.Listen == "" && len(g.Remotes) == 0:
		return nil
	case g.Region == "":
		return errors.New("a gateway needs a region name")
	case g.Listen == "" && len(g.Remotes) > 0:
		return errors.New("gateways to other regions need a gateway listener")
	}
	for region := range g.Remotes {
		if err := CheckRegion(region); err != nil {
			return fmt.Errorf("gateway: %w", err)
		}
	}
	return CheckRegion(g.Region)
}

// setGateways makes the server part of a region.
func setGateways(opts *server.Options, cfg Config) (err error) {
	g := cfg.Gateways
	if err := g.check(); err != nil || g.Listen == "" {
		return err
	}
	o := &opts.Gateway
	o.Name, o.Advertise = g.Region, g.Advertise
	if o.Host, o.Port, err = listenAddress("--gateway-listen", g.Listen); err != nil {
		return err
	}
	if o.TLSConfig, err = cfg.Keys.ClusterTLS(); err != nil {
		return err
	}
	o.TLSTimeout = broker.DialTimeout.Seconds()
	o.WriteDeadline, o.WriteTimeout = writeDeadline, server.WriteTimeoutPolicyRetry
	for _, region := range slices.Sorted(maps.Keys(g.Remotes)) {
		if region == g.Region { // a region's own entry is ignored, so all regions can have equal settings
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

// GatewayAddr returns this server's address for gateways, or "".
func (s *Server) GatewayAddr() string {
	if a := s.nats.GatewayAddr(); a != nil {
		return a.String()
	}
	return ""
}

// ParseRemotes parses REGION=HOST:PORT values. Each names one server of a region.
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
