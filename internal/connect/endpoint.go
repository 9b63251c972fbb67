package connect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/console"
	"ahprelay/internal/clock"
)

// DefaultListen is the endpoint's default address.
const DefaultListen = "127.0.0.1:8486"

// Bounds of an Endpoint.
const (
	maxClients   = 256              // connections of local clients
	maxHeader    = 16 << 10         // bytes of a request header
	headerTime   = 10 * time.Second // for sending a request header
	revokedEvery = time.Second      // how soon connections with a revoked token end
)

// Config configures an [Endpoint].
type Config struct {
	Relays  *Relays
	Tokens  *Tokens
	Origins []string // patterns for web origins which may connect, in addition to editors
	Log     *slog.Logger
}

// editorOrigins are the origins of desktop editors. No web page can have them.
var editorOrigins = []string{"vscode-file://vscode-app"}

// An Endpoint serves AHP to local clients.
type Endpoint struct {
	cfg  Config
	page func() http.Handler // the console, loaded at first use to save memory

	mu    sync.Mutex // guards the fields below
	conns map[*localConn]bool
	ended bool
	wg    sync.WaitGroup // handlers of connections, and watchTokens
}

// A localConn is a local client's connection.
type localConn struct {
	token LocalToken
	end   context.CancelCauseFunc
}

// NewEndpoint returns an Endpoint.
func NewEndpoint(cfg Config) *Endpoint {
	return &Endpoint{cfg: cfg, page: sync.OnceValue(func() http.Handler { return console.Handler("") }), conns: map[*localConn]bool{}}
}

// CheckListen refuses an address other than host:port on a loopback interface, or unix:/path.
func CheckListen(address string) error {
	if strings.HasPrefix(address, "unix:") {
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("--listen %s: want 127.0.0.1:8486 or unix:/path", address)
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return fmt.Errorf("--listen %s: only loopback addresses are allowed, because every connection acts as you; want one such as 127.0.0.1:8486", address)
	}
	return nil
}

// Listen opens a listener at an address that CheckListen accepts.
func Listen(address string) (net.Listener, error) {
	if err := CheckListen(address); err != nil {
		return nil, err
	}
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return listenUnix(path)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, &PortTaken{address, err}
	}
	return l, nil
}

// PortTaken reports that the system does not give the address, usually because a different
// program uses it.
type PortTaken struct {
	Address string
	err     error
}

func (e *PortTaken) Error() string {
	return fmt.Sprintf("%s cannot be used, perhaps because another program uses it: stop that program, or choose another address with --listen", e.Address)
}

// Unwrap returns the system's error.
func (e *PortTaken) Unwrap() error { return e.err }

// Serve serves local clients until ctx ends, and returns when all their connections
// have ended.
func (e *Endpoint) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler: e, ReadHeaderTimeout: headerTime, IdleTimeout: time.Minute, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(e.cfg.Log.Handler(), slog.LevelDebug),
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		_ = server.Close()
		e.endAll(&Closed{ahp.CloseShuttingDown, "ahp-connect stops"}, func(LocalToken) bool { return true }, true)
	})
	defer stop()
	e.wg.Go(func() { e.watchTokens(ctx) })
	err := server.Serve(l)
	if ctx.Err() != nil {
		err = nil
	}
	cancel() // also after a failure
	e.wg.Wait()
	return err
}

// watchTokens ends connections whose token was revoked, until ctx ends.
func (e *Endpoint) watchTokens(ctx context.Context) {
	for clock.Sleep(ctx, revokedEvery) {
		list, err := e.cfg.Tokens.List()
		if err != nil {
			e.cfg.Log.Warn("local tokens unreadable", "effect", "open connections continue", "error", err)
			continue
		}
		e.endAll(&Closed{ahp.CloseTokenEnded, "token revoked: make a new one with ahp-connect token"}, func(used LocalToken) bool {
			return !slices.ContainsFunc(list, func(one LocalToken) bool { return one.Token == used.Token })
		}, false)
	}
}

// endAll ends the connections for which of returns true. If last is true, the Endpoint admits
// no more connections.
func (e *Endpoint) endAll(why *Closed, of func(LocalToken) bool, last bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = e.ended || last
	for c := range e.conns {
		if of(c.token) {
			c.end(why)
		}
	}
}

// ServeHTTP implements [http.Handler].
func (e *Endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if why := e.foreign(r); why != "" {
		e.cfg.Log.Warn("request refused", "reason", why)
		http.Error(w, why, http.StatusForbidden)
		return
	}
	if !strings.HasPrefix(r.URL.Path, "/ahp/") && !strings.HasPrefix(r.URL.Path, "/api/") && r.Header.Get("Upgrade") == "" {
		w.Header().Del("Cache-Control") // each file has its own
		e.page().ServeHTTP(w, r)        // needs no token, because the files contain no secrets
		return
	}
	given, err := auth.RequestToken(r)
	if err != nil {
		refuse(w, "no local token: ahp-connect url HOST prints an address with a token")
		return
	}
	token, ok := e.cfg.Tokens.Match(given)
	if !ok {
		e.cfg.Log.Warn("request refused", "reason", "unknown local token")
		refuse(w, "unknown local token: make a new one with ahp-connect token NAME")
		return
	}
	switch relay, host, ok := e.place(r, token); {
	case r.URL.Path == "/api/hosts" && r.Method == http.MethodGet:
		e.serveHosts(w, r, token)
	case !ok:
		http.Error(w, "no such page: want /ahp/HOST", http.StatusNotFound)
	case r.Header.Get("Upgrade") == "":
		http.Error(w, "this address is for WebSockets", http.StatusUpgradeRequired)
	default:
		e.connect(w, r, token, relay, host)
	}
}

// refuse answers a request without a valid local token.
func refuse(w http.ResponseWriter, why string) {
	w.Header().Set("WWW-Authenticate", `Bearer realm="ahp-connect"`)
	http.Error(w, why, http.StatusUnauthorized)
}

// foreign returns why a request must be refused as a web page's, or "".
func (e *Endpoint) foreign(r *http.Request) string {
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); !ok || local.Network() == "tcp" {
		name := r.Host
		if host, _, err := net.SplitHostPort(r.Host); err == nil {
			name = host
		}
		ip, err := netip.ParseAddr(strings.Trim(name, "[]"))
		if name != "localhost" && (err != nil || !ip.IsLoopback()) {
			return "the request names a foreign host: use 127.0.0.1"
		}
	}
	for _, origin := range r.Header.Values("Origin") {
		if origin == "http://"+r.Host {
			continue // the console's own page
		}
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" || !slices.ContainsFunc(slices.Concat(editorOrigins, e.cfg.Origins), func(pattern string) bool {
			match, _ := path.Match(strings.ToLower(pattern), strings.ToLower(origin)) // Config's patterns are checked at the start
			return match
		}) {
			return "web pages may not connect: allow the page's origin with --allow-origin"
		}
	}
	return ""
}

// CheckOrigins reports a bad pattern.
func CheckOrigins(patterns []string) error {
	for _, one := range patterns {
		if _, err := path.Match(one, ""); err != nil || !strings.Contains(one, "://") {
			return fmt.Errorf("--allow-origin %s: want an origin such as https://vscode.dev", one)
		}
	}
	return nil
}

// place returns the relay ("" if not named) and the host in a request's path. Clients
// which cannot set a path get the only host their token opens.
func (e *Endpoint) place(r *http.Request, token LocalToken) (relay, host string, ok bool) {
	rest, found := strings.CutPrefix(r.URL.Path, "/ahp/")
	switch {
	case !found && r.URL.Path == "/" && len(token.Hosts) == 1 && !strings.Contains(token.Hosts[0], auth.All):
		return "", token.Hosts[0], true
	case !found:
		return "", "", false
	}
	if relay, host, two := strings.Cut(rest, "/"); two {
		return relay, host, relay != "" && host != "" && !strings.Contains(host, "/")
	}
	return "", rest, rest != ""
}

// localHost is a host as the local console sees it: never sealed, because ahp-connect
// does the encryption.
type localHost struct {
	Host
	Sealed bool `json:"sealed"`
}

// serveHosts lists the hosts a token opens, in the same form as a relay. If several
// relays have a host with the same name, as for Find, the name is prefixed with the relay.
func (e *Endpoint) serveHosts(w http.ResponseWriter, r *http.Request, token LocalToken) {
	all, failed := e.cfg.Relays.Hosts(r.Context())
	hosts := []localHost{}
	for _, h := range all {
		if !token.opens(h.Name) {
			continue
		}
		if slices.ContainsFunc(e.cfg.Relays.list, func(other *Relay) bool { return other.Name != h.Relay && other.claims(h.Name, all) }) {
			h.Name = h.Relay + "/" + h.Name
		}
		hosts = append(hosts, localHost{Host: h})
	}
	level := cmp.Or(token.Level, auth.AccessWrite) // the host-agent knows the person's own
	answer := map[string]any{"hosts": hosts, "token": map[string]any{"subject": token.Name, "access": level, "level": level.Level()}}
	if failed != nil {
		answer["error"] = failed.Error()
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the client may be gone
}

func (e *Endpoint) connect(w http.ResponseWriter, r *http.Request, token LocalToken, named, host string) {
	if !token.opens(host) {
		http.Error(w, fmt.Sprintf("the local token %q does not open %s: ahp-connect token %s --host %s replaces it", token.Name, host, token.Name, host), http.StatusForbidden)
		return
	}
	relay, err := e.cfg.Relays.Find(r.Context(), named, host)
	if err != nil {
		status := http.StatusServiceUnavailable
		if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
			status = http.StatusNotFound
		}
		http.Error(w, err.Error(), status)
		return
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	c := &localConn{token: token, end: cancel}
	if !e.add(c) {
		w.Header().Set("Retry-After", "5")
		http.Error(w, "too many local connections: close some programs", http.StatusServiceUnavailable)
		return
	}
	defer e.remove(c)
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"ahp"}, InsecureSkipVerify: true}) // foreign has checked the origin
	if err != nil {
		return // the library has answered
	}
	ws.SetReadLimit(maxMessage)
	log := e.cfg.Log.With("host", host, "relay", relay.Name, "program", token.Name)
	log.Info("client connected")
	ServeLocal(ctx, &wsMessages{ws: ws}, relay, host, token.Level, log)
}

// add registers a connection. It returns false if there are too many, or the Endpoint stops.
func (e *Endpoint) add(c *localConn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended || len(e.conns) >= maxClients {
		return false
	}
	e.conns[c] = true
	e.wg.Add(1)
	return true
}

func (e *Endpoint) remove(c *localConn) {
	c.end(nil)
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.conns, c)
	e.wg.Done()
}
