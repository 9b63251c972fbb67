package agents

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/registry"
	"ahprelay/gateway/admission"
	"ahprelay/gateway/authn"
)

// Config configures an [API].
type Config struct {
	Caller   *authn.Checker
	Registry *registry.Registry
	Log      *slog.Logger

	AgentTTL      time.Duration // lifetime of NATS credentials
	CredentialTTL time.Duration // lifetime of host-agents' credentials

	// NATS opens a connection to the NATS server for a tenant's host-agent, until ctx
	// ends. If it is nil, there is no /nats.
	NATS func(ctx context.Context, tenant, host string) (net.Conn, error)

	// Accept upgrades a request, or answers it with an error.
	Accept func(w http.ResponseWriter, r *http.Request) (Tunnel, error)

	// Stopped reports whether host-agents have to connect to other relays. Leaving
	// reports whether they should: then there are no idle connections.
	Stopped, Leaving func() bool

	// Place is the relay's region and zone; see [broker.PlaceHeader].
	Place string

	Life  context.Context   // ends with the server; so do all WebSockets
	Spawn func(func()) bool // starts a goroutine that the server waits for; false: the server has ended
}

// A Tunnel is a WebSocket of a host-agent.
type Tunnel interface {
	// Stream returns the stream of bytes in its binary messages.
	Stream() net.Conn

	// Close sends a close frame, and waits briefly for the peer's.
	Close(code ahp.CloseCode, reason string)

	// Kill closes the connection without a close frame.
	Kill()

	// Reads counts the messages read.
	Reads() uint32

	// Ping sends a ping. It waits for no answer.
	Ping(payload string)
}

// An API serves host-agents.
type API struct {
	Config
	tunnels  tunnels
	renewing sync.Mutex // held while the credential in use is checked and recorded

	logins, enrolments *admission.Arrivals
}

// New returns an API.
func New(cfg Config) *API {
	return &API{Config: cfg, logins: admission.NewArrivals(), enrolments: admission.NewArrivals()}
}

// Routes registers the API's handlers.
func (a *API) Routes(mux *http.ServeMux) {
	mux.HandleFunc("POST /agent/challenge", a.serveChallenge)
	mux.HandleFunc("POST /agent/credentials", a.serveCredentials)
	mux.HandleFunc("POST /agent/enroll", a.serveEnroll)
	mux.HandleFunc("POST /agent/renew", a.serveRenew)
	if a.NATS != nil {
		mux.HandleFunc("GET /nats", a.serveNATS)
	}
}
