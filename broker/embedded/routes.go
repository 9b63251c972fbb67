package embedded

import (
	"context"
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

// Times for routes.
const (
	resolveTimeout = 2 * time.Second // for the names of all routes together
	absentTimeout  = time.Second     // for a server to accept a connection
)

// withoutOwn returns the routes to other servers. NATS counts each route among the
// servers that must vote at a cluster's first start, including a server's route to
// itself, which makes it wait for more servers than exist. A route is the server's own,
// however it is spelled, if it has the listener's port and one of the listener's
// addresses. A name that cannot be resolved yet is compared with the machine's name:
// in Kubernetes, a pod's own name may appear late.
func withoutOwn(routes []*url.URL, o *server.ClusterOpts) []*url.URL {
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
	var others []*url.URL
	for i, r := range routes {
		if !own[i] {
			others = append(others, r)
		}
	}
	return others
}

// addresses returns a host's IP addresses; none for an unknown name.
func addresses(ctx context.Context, host string) []net.IP {
	if host == "" {
		return []net.IP{net.IPv6unspecified}
	}
	ips, _ := net.DefaultResolver.LookupIP(ctx, "ip", host)
	return ips
}

// covers reports whether a listener on the given addresses accepts connections to an
// address of this machine.
func covers(listens []net.IP, ip net.IP) bool {
	for _, l := range listens {
		if l.Equal(ip) || l.IsUnspecified() && isOfMachine(ip) {
			return true
		}
	}
	return false
}

// isOfMachine reports whether this machine has an IP address.
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

// Others returns the configured addresses of other cluster servers.
func (s *Server) Others() []string { return s.others }

// Absent returns the configured cluster servers that accept no connection now, each
// with the reason.
func (s *Server) Absent(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, absentTimeout)
	defer cancel()
	found := make([]string, len(s.others))
	var wg sync.WaitGroup
	for i, address := range s.others {
		wg.Go(func() {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", address)
			if err != nil {
				found[i] = address + " (" + shortReason(err) + ")"
				return
			}
			_ = c.Close()
		})
	}
	wg.Wait()
	return slices.DeleteFunc(found, func(f string) bool { return f == "" })
}

// shortReason returns why a connection could not be made, without the address.
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
