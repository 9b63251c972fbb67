package hostagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// The control socket lists the connected clients and ends connections: HTTP over a
// Unix socket that only the host's owner can reach.
//
//	GET  /clients  → Clients
//	GET  /devices  → Devices, at a sealed host
//	POST /devices  DeviceOrder → PairingCode for "pair", SealedLink for "link", else {}
//	POST /kick     {"conn"} or {"subject"}, and "for" in nanoseconds; or {"preview"} → {"ended"}
//
// An error is {"error"}.

// Clients lists the clients connected through a host-agent.
type Clients struct {
	Tenant  string        `json:"tenant"`
	Host    string        `json:"host"`
	Agent   string        `json:"agent"`   // instance name of this run of the host-agent
	Clients []ClientInfo  `json:"clients"` // connected clients, the earliest first
	Blocked []BlockedInfo `json:"barred"`  // subjects and tokens that are blocked now

	Previews []Preview `json:"previews"` // ports that clients have opened
}

// ClientInfo describes a client's connection at the host-agent.
type ClientInfo struct {
	ID        string    `json:"id"` // same as in the logs of relay and host-agent
	Subject   string    `json:"subject"`
	Access    string    `json:"access"` // the client's level at this host
	Token     string    `json:"token"`  // token id
	Relay     string    `json:"relay"`  // instance name of the relay
	Address   string    `json:"address,omitempty"`
	Since     time.Time `json:"since"`
	ClientID  string    `json:"clientId,omitempty"`
	FramesIn  int64     `json:"framesIn"` // messages from the client
	FramesOut int64     `json:"framesOut"`
	Refused   int64     `json:"refused"` // messages in FramesIn that the gates refused
}

// BlockedInfo describes a subject or token that is blocked until a time.
type BlockedInfo struct {
	Subject string    `json:"subject,omitempty"`
	Token   string    `json:"token,omitempty"` // token id
	Until   time.Time `json:"until"`
}

func (c *hostConn) info() ClientInfo {
	c.writer.mu.Lock()
	clientID := c.writer.clientID
	c.writer.mu.Unlock()
	return ClientInfo{
		ID: c.open.ID, Subject: c.open.Subject, Access: string(c.policy.Access), Token: c.open.Token,
		Relay: c.conn.Relay(), Address: c.open.Remote, Since: c.since.UTC(), ClientID: clientID,
		FramesIn: c.counts.in.Load(), FramesOut: c.counts.out.Load(), Refused: c.counts.refused.Load(),
	}
}

func (a *Agent) list() Clients {
	list := Clients{Tenant: a.tenant, Host: a.host, Agent: a.instance, Clients: []ClientInfo{}, Blocked: a.blocked.list()}
	list.Previews = a.live.previews.list(func(*openPreview) bool { return true })
	for _, c := range a.clients.every() {
		if !c.kicked.Load() {
			list.Clients = append(list.Clients, c.info())
		}
	}
	slices.SortFunc(list.Clients, func(a, b ClientInfo) int { return a.Since.Compare(b.Since) })
	return list
}

func controlHandler(list func() Clients, end func(Kick) (ended int, err error)) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /clients", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, list()) })
	mux.HandleFunc("POST /kick", func(w http.ResponseWriter, r *http.Request) { serveKick(w, r, end) })
	return mux
}

// Kicked is the response to a kick.
type Kicked struct {
	Ended int `json:"ended"` // how many connections and previews the kick has ended
}

func serveKick(w http.ResponseWriter, r *http.Request, end func(Kick) (ended int, err error)) {
	var k Kick
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxAnswer)).Decode(&k)
	if err != nil || !k.valid() || k.For < 0 {
		writeError(w, http.StatusBadRequest, errors.New("want JSON with either conn, subject or preview, and for in nanoseconds"))
		return
	}
	ended, err := end(k)
	switch {
	case errors.Is(err, errNobody):
		writeError(w, http.StatusNotFound, err)
	case err != nil:
		writeError(w, http.StatusConflict, err)
	default:
		say(w, http.StatusOK, Kicked{ended})
	}
}

func say(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // fails if the requester has left
}

func writeError(w http.ResponseWriter, status int, err error) {
	say(w, status, map[string]string{"error": err.Error()})
}

// serveControl serves the control socket, if one is configured, until ctx ends. The host is served
// even if the socket cannot be opened.
func (a *Agent) serveControl(ctx context.Context) {
	if a.cfg.Control == "" {
		return
	}
	listener, remove, err := ListenPrivate(a.cfg.Control)
	if err != nil {
		a.cfg.Log.Error("control socket unavailable", "effect", `commands such as "host-agent clients" cannot reach this host-agent`, "error", err)
		return
	}
	a.cfg.Log.Info("control socket opened", "path", a.cfg.Control)
	defer remove()
	mux := controlHandler(a.list, a.kick)
	mux.HandleFunc("GET /devices", a.seals.serveDevices)
	mux.HandleFunc("POST /devices", a.seals.serveDeviceOrder)
	serveHTTP(ctx, listener, mux)
}

// controlTimeout bounds a request to the control socket, or for metrics.
const controlTimeout = 5 * time.Second

// A Control sends requests to a running host-agent through its control socket.
type Control struct {
	Path string // path of the socket
}

// Clients returns the connected clients.
func (c Control) Clients(ctx context.Context) (list Clients, err error) {
	err = c.do(ctx, http.MethodGet, "/clients", nil, &list)
	return list, err
}

// Kick ends connections, and returns their number, or that of previews if there was no connection.
// An unknown id is an error.
func (c Control) Kick(ctx context.Context, k Kick) (ended int, err error) {
	var kicked Kicked
	err = c.do(ctx, http.MethodPost, "/kick", k, &kicked)
	return kicked.Ended, err
}

// Devices returns the devices of a sealed host.
func (c Control) Devices(ctx context.Context) (list Devices, err error) {
	err = c.do(ctx, http.MethodGet, "/devices", nil, &list)
	return list, err
}

// OrderDevices changes the devices of a sealed host. The answer to "pair" is the code.
func (c Control) OrderDevices(ctx context.Context, order DeviceOrder) (code PairingCode, err error) {
	err = c.do(ctx, http.MethodPost, "/devices", order, &code)
	return code, err
}

// Link makes a link to a session of a sealed host.
func (c Control) Link(ctx context.Context, order DeviceOrder) (link SealedLink, err error) {
	order.Do = "link"
	err = c.do(ctx, http.MethodPost, "/devices", order, &link)
	return link, err
}

// ErrNoAgent reports that no host-agent listens on the control socket.
var ErrNoAgent = errors.New("no running host-agent")

// maxClients bounds a response of the control socket, in bytes.
const maxClients = 64 << 20

func (c Control) do(ctx context.Context, method, path string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://host-agent"+path, strings.NewReader(string(data)))
	if err != nil {
		return err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", c.Path)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if isRefused(err) {
		return fmt.Errorf("%w: no listener at the control socket %s", ErrNoAgent, c.Path)
	}
	if err != nil {
		return fmt.Errorf("control socket %s: %w", c.Path, unwrapURL(err))
	}
	defer response.Body.Close()
	data, err = io.ReadAll(io.LimitReader(response.Body, maxClients))
	if err != nil {
		return fmt.Errorf("control socket %s: %w", c.Path, err)
	}
	if response.StatusCode != http.StatusOK {
		var failure struct{ Error string }
		_ = json.Unmarshal(data, &failure)
		return fmt.Errorf("host-agent: %s", shorten(failure.Error))
	}
	return json.Unmarshal(data, answer)
}
