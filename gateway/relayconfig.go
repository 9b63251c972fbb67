package gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker"
	"ahprelay/broker/embedded"
)

// RelayConfig configures a [Relay]. Everything except DataDir has a default.
type RelayConfig struct {
	DataDir       string // required; has the keys and the registry; each relay needs its own
	Listen        string // public listener; default 127.0.0.1:8484
	AdminListen   string // admin listener; default 127.0.0.1:8485; "none" for none
	MetricsListen string // serves only /metrics, without authentication; default: none, the admin listener serves it
	NATSListen    string // NATS over TCP for host-agents, with the public listener's certificate unless the address is loopback; default: none, host-agents use /nats
	NATSURL       string // an external NATS cluster to join; default: the embedded server

	// ForgetAfter is the time after which an absent host is forgotten. Default: never.
	ForgetAfter time.Duration

	// HostLimits limit the connected host-agents in each tenant: see [registry.Config].
	// Default: no limits.
	HostLimits map[string]int

	// ClusterListen is the embedded NATS server's address for other relays in its
	// cluster, and ClusterRoutes are their addresses. All relays in a cluster need the
	// same keys. Default: no cluster. See [embedded.Cluster].
	ClusterListen string
	ClusterRoutes []string

	// ClusterSize is the planned number of relays and witnesses in the cluster. The first
	// start needs a majority of them. Default: the number of relays in ClusterRoutes and
	// this one.
	ClusterSize int

	// ClusterAdvertise is this relay's address for relays that learn about it from
	// another relay. Default: ClusterListen.
	ClusterAdvertise string

	// Region is the name of this relay's cluster if several clusters are joined. With
	// embedded NATS servers, the next three fields join the clusters (see
	// [embedded.Gateways]). With NATSURL, the external servers join them.
	Region           string
	GatewayListen    string
	GatewayAdvertise string
	Gateways         []string // REGION=HOST:PORT

	// TLS configures the public listener's certificates. Default: no TLS. Without TLS, a
	// listener beyond loopback is an error unless ListenPlain is set.
	TLS         TLSConfig
	ListenPlain bool

	Notify NotifyConfig // notifications

	// RememberHost and RememberTenant limit the bytes stored for the last states of a
	// host, and of all hosts in a tenant. Default: see package remembered.
	RememberHost, RememberTenant int64

	Gateway Config // StartRelay fills in Keys, Bus, Registry, Instance, People, NATS, Listens, Ready and Degraded

	times requestTimes // default: defaultTimes
}

// Default listener addresses.
const (
	DefaultListen      = "127.0.0.1:8484"
	DefaultAdminListen = "127.0.0.1:8485"
	NoListener         = "none"
)

// TrustFile is a file in the data directory that an external NATS cluster must include in
// its configuration. It makes the cluster accept this relay and its host-agents.
const TrustFile = "nats-trust.conf"

// Check returns an error for settings that are invalid, contradict each other or would send
// tokens over a network in plain text. It opens no port and no data directory.
func (c *RelayConfig) Check(ctx context.Context) error {
	if err := c.TLS.check(c.Gateway.CanvasDomain); err != nil {
		return err
	}
	settings := c.Gateway.withDefaults()
	return errors.Join(settings.checkSettings(), c.Notify.check(), c.checkListeners(ctx), c.checkNATS(), c.checkCluster())
}

// CheckWitness is Check for [StartWitness], which uses the settings of the cluster only.
func (c *RelayConfig) CheckWitness() error {
	if c.ClusterListen == "" || len(c.ClusterRoutes) == 0 {
		return errors.New("--witness needs a cluster: add --cluster-listen and --cluster-route")
	}
	return errors.Join(c.checkNATS(), c.checkCluster())
}

// checkNATS returns an error for a malformed name or address of NATS servers.
func (c *RelayConfig) checkNATS() error {
	if c.NATSURL != "" {
		for u := range strings.SplitSeq(c.NATSURL, ",") {
			if err := broker.CheckURL(u, "nats", "tls"); err != nil {
				return fmt.Errorf("--nats-url: %w", err)
			}
		}
	}
	if err := embedded.CheckRoutes(c.ClusterRoutes); err != nil {
		return fmt.Errorf("--cluster-route: %w", err)
	}
	if err := ahp.CheckName("--region", c.Region); c.Region != "" && err != nil {
		return err
	}
	_, err := c.gateways()
	return err
}

func (c *RelayConfig) checkCluster() error {
	switch {
	case c.ClusterListen == "" && len(c.ClusterRoutes) > 0:
		return fmt.Errorf("--cluster-route %s: relays connect to each other; add --cluster-listen host:port", c.ClusterRoutes[0])
	case c.ClusterListen != "" && c.NATSURL != "":
		return errors.New("--cluster-listen is for embedded NATS servers, and --nats-url replaces them; choose one")
	case c.GatewayListen != "" && c.NATSURL != "":
		return errors.New("--gateway-listen is for embedded NATS servers, and --nats-url replaces them; choose one")
	case c.GatewayListen == "" && len(c.Gateways) > 0:
		return fmt.Errorf("--gateway %s: regions connect to each other; add --gateway-listen host:port", c.Gateways[0])
	case c.GatewayListen != "" && c.Region == "":
		return errors.New("--gateway-listen needs the name of this region: add --region")
	case c.Region != "" && c.GatewayListen == "" && c.NATSURL == "":
		return fmt.Errorf("--region %s: add --gateway-listen, the address for other regions", c.Region)
	}
	return c.checkClusterSize()
}

func (c *RelayConfig) checkClusterSize() error {
	switch {
	case c.ClusterSize == 0:
		return nil
	case c.ClusterSize < 2:
		return fmt.Errorf("--cluster-size %d; want 2 or more", c.ClusterSize)
	case c.ClusterListen == "":
		return fmt.Errorf("--cluster-size %d: add --cluster-listen host:port, and the other relays with --cluster-route", c.ClusterSize)
	case c.GatewayListen != "":
		return fmt.Errorf("--cluster-size %d is for a cluster without regions: with --gateway-listen, the list of --gateway has all relays", c.ClusterSize)
	}
	return nil
}

func (c *RelayConfig) several() bool { return c.ClusterListen != "" || c.Region != "" }

// gateways returns the configuration for connections to other regions.
func (c *RelayConfig) gateways() (embedded.Gateways, error) {
	remotes, err := embedded.ParseRemotes(c.Gateways)
	if err != nil {
		return embedded.Gateways{}, fmt.Errorf("--gateway: %w", err)
	}
	return embedded.Gateways{Region: c.Region, Listen: c.GatewayListen, Advertise: c.GatewayAdvertise, Remotes: remotes}, nil
}
