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
	"ahprelay/gateway/authn"
)

// Config is what an [API] is given.
type Config struct {
	Caller   *authn.Checker
	Registry *registry.Registry
	Log      *slog.Logger

	AgentTTL      time.Duration // of NATS credentials
	CredentialTTL time.Duration // of credentials for enrolment tokens

	// NATS opens a connection to the NATS server for a tenant's host-agent, until ctx ends. Nil:
	// there is no /nats.
	NATS func(ctx context.Context, tenant, host string) (net.Conn, error)

	// Accept upgrades a request, or answers it with an error.
	Accept func(w http.ResponseWriter, r *http.Request) (Tunnel, error)

	Life  context.Context   // ends with the server, and all WebSockets with it
	Spawn func(func()) bool // starts a goroutine that the server waits for; false: it has ended
}

// A Tunnel is a WebSocket of a host-agent.
type Tunnel interface {
	// Stream is what its binary messages carry, as one connection.
	Stream() net.Conn

	// Close sends a close frame, and waits a little for the other side's.
	Close(code ahp.CloseCode, reason string)

	// Kill ends it without a word.
	Kill()

	// Reads counts what it has brought.
	Reads() uint32
}

// An API answers host-agents.
type API struct {
	Config
	tunnels  tunnels
	renewing sync.Mutex // held while it is noted which credential is in use
}

// New returns an API.
func New(cfg Config) *API { return &API{Config: cfg} }

// Routes adds what host-agents ask for.
func (a *API) Routes(mux *http.ServeMux) {
	mux.HandleFunc("POST /agent/challenge", a.serveChallenge)
	mux.HandleFunc("POST /agent/credentials", a.serveCredentials)
	mux.HandleFunc("POST /agent/enroll", a.serveEnroll)
	mux.HandleFunc("POST /agent/renew", a.serveRenew)
	if a.NATS != nil {
		mux.HandleFunc("GET /nats", a.serveNATS)
	}
}
