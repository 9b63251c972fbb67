package embedded

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Times for connections to routes.
const (
	resolveTimeout = 2 * time.Second // for resolving the names of all routes together
	absentTimeout  = time.Second     // how long a server may take to accept a connection
)

// splitRoutes separates a server's routes to itself from the others. A route is the
// server's own if it has the listener's port and one of the listener's addresses, in any
// spelling. A name which cannot be resolved yet is compared with the machine's name,
// because in Kubernetes a pod's own name may appear late.
func splitRoutes(routes []*url.URL, o *server.ClusterOpts) (mine, others []*url.URL) {
	ctx, cancel := context.WithTimeout(context.Background(), resolveTimeout)
	defer cancel()
	listens := addresses(ctx, o.Host)
	name, _ := os.Hostname()
	own := make([]bool, len(routes))
	var wg sync.WaitGroup
	for i, r := range routes {
		if r.Port() != strconv.Itoa(o.Port) {
			continue
		}
		wg.Go(func() {
			found := addresses(ctx, r.Hostname())
			first, _, _ := strings.Cut(r.Hostname(), ".")
			own[i] = slices.ContainsFunc(found, func(ip net.IP) bool { return covers(listens, ip) }) ||
				len(found) == 0 && name != "" && (strings.EqualFold(r.Hostname(), name) || strings.EqualFold(first, name))
		})
	}
	wg.Wait()
	for i, r := range routes {
		if own[i] {
			mine = append(mine, r)
		} else {
			others = append(others, r)
		}
	}
	return mine, others
}

// Place returns a permanent server name, derived from this server's own entry in Routes,
// which all servers share. If a server is lost, its replacement with an empty store has
// the same entry, and so the same name; the others then give it the copies of the lost
// server. Place returns "" if the list lacks an entry for this server or for another.
func (c *Cluster) Place() string {
	o := &server.ClusterOpts{}
	var err error
	if o.Host, o.Port, err = listenAddress("--cluster-listen", c.Listen); err != nil {
		return ""
	}
	var routes []*url.URL
	for _, r := range c.Routes {
		if u, err := routeURL(r); err == nil {
			routes = append(routes, u)
		}
	}
	mine, others := splitRoutes(routes, o)
	if len(mine) == 0 || len(others) == 0 {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.ToLower(mine[0].Host)))
	return "relay-at-" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:13]
}

// addresses returns a host's IP addresses, none if its name is unknown.
func addresses(ctx context.Context, host string) []net.IP {
	if host == "" {
		return []net.IP{net.IPv6unspecified}
	}
	ips, _ := net.DefaultResolver.LookupIP(ctx, "ip", host)
	return ips
}

// covers reports whether a listener with the given addresses accepts connections to ip.
func covers(listens []net.IP, ip net.IP) bool {
	return slices.ContainsFunc(listens, func(l net.IP) bool { return l.Equal(ip) || l.IsUnspecified() && isOfMachine(ip) })
}

func isOfMachine(ip net.IP) bool {
	if ip.IsLoopback() || ip.IsUnspecified() {
		return true
	}
	own, _ := net.InterfaceAddrs()
	return slices.ContainsFunc(own, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(ip)
	})
}

// Others returns the configured addresses of the other servers in the cluster.
func (s *Server) Others() []string { return s.others }

// Absent returns the configured servers which accept no connection now, each with the
// reason.
func (s *Server) Absent(ctx context.Context) []string {
	var found []string
	for i, err := range s.try(ctx) {
		if err != nil {
			found = append(found, s.others[i]+" ("+shortReason(err)+")")
		}
	}
	return found
}

// CutOff reports whether the other servers of the cluster may have a majority without
// this server and those connected to it. Servers which have ended are in no majority. A
// refused connection proves that a server has ended, but only if its address has
// accepted a connection before: otherwise a firewall or address translation may refuse
// for a running server. So the crash of all other servers, or of one server of two, is
// not a cut. Call CutOff at least every few seconds, so it learns before a cut which
// addresses accept connections.
func (s *Server) CutOff(ctx context.Context) bool {
	connected, all := s.Members()
	majority := all/2 + 1
	if connected >= majority || all-connected < majority {
		if s.accepts.due(time.Now(), len(s.others)) {
			s.try(ctx)
		}
		return false
	}
	missing := all - connected
	for i, err := range s.try(ctx) {
		if errors.Is(err, syscall.ECONNREFUSED) && s.accepts.has(s.others[i]) {
			missing--
		}
	}
	return missing >= majority
}

// acceptEvery is the interval at which CutOff tries the servers while some have not
// accepted a connection yet.
const acceptEvery = 10 * time.Second

// accepts are the addresses which have accepted a connection from this process.
type accepts struct {
	mu    sync.Mutex // guards the fields below
	of    map[string]bool
	asked time.Time
}

func (a *accepts) due(now time.Time, others int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.of) == others || now.Sub(a.asked) < acceptEvery {
		return false
	}
	a.asked = now
	return true
}

func (a *accepts) add(address string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of == nil {
		a.of = map[string]bool{}
	}
	a.of[address] = true
}

func (a *accepts) has(address string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.of[address]
}

// Members returns how many servers of this server's cluster are connected, and how many
// there are. Both numbers include this server.
func (s *Server) Members() (connected, all int) {
	connected = len(s.Routes()) + 1
	all = max(connected, len(s.others)+1, s.size)
	if s.nats.GatewayAddr() != nil { // JetStream counts the servers of all regions together
		return connected, all
	}
	if info, err := s.nats.Jsz(nil); err == nil && info.Meta != nil {
		all = max(all, info.Meta.Size)
	}
	return connected, all
}

// try connects to each configured server, and returns an error or nil for each.
func (s *Server) try(ctx context.Context) []error {
	ctx, cancel := context.WithTimeout(ctx, absentTimeout)
	defer cancel()
	found := make([]error, len(s.others))
	var wg sync.WaitGroup
	for i, address := range s.others {
		wg.Go(func() {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", address)
			if found[i] = err; err == nil {
				s.accepts.add(address)
				_ = c.Close()
			}
		})
	}
	wg.Wait()
	return found
}

// shortReason returns the reason of a failed connection, without the address.
func shortReason(err error) string {
	var unknown *net.DNSError
	var refused syscall.Errno
	switch {
	case errors.As(err, &unknown):
		return "name not found"
	case errors.As(err, &refused):
		return refused.Error()
	}
	return "no answer"
}

// othersOf returns the host:port of each route to another server.
func othersOf(opts *server.Options) (list []string) {
	for _, r := range opts.Routes {
		if r.Host != ownRoute(&opts.Cluster) {
			list = append(list, r.Host)
		}
	}
	return list
}
