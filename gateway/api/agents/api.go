package agents

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/registry"
	"ahprelay/gateway/admission"
	"ahprelay/gateway/authn"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Config configures an [API].
type Config struct {
	Caller   *authn.Checker
	Registry *registry.Registry
	Log      *slog.Logger

	AgentTTL      time.Duration // lifetime of NATS credentials
	CredentialTTL time.Duration // lifetime of host-agents' credentials

	// NATS connects a tenant's host-agent to the NATS server. The connection ends with
	// ctx. If NATS is nil, there is no /nats.
	NATS func(ctx context.Context, tenant, host string) (net.Conn, error)

	// Accept upgrades a request to a WebSocket, or responds with an error.
	Accept func(w http.ResponseWriter, r *http.Request) (Tunnel, error)

	// Stopped reports whether host-agents must connect to other relays. Leaving reports
	// whether they should, and then this relay refuses idle connections.
	Stopped, Leaving func() bool

	// Place is the relay's region and zone; see [broker.PlaceHeader].
	Place string

	Life  context.Context   // ends with the server, and ends all WebSockets
	Spawn func(func()) bool // starts a goroutine that the server waits for; false: the server has ended
}

// A Tunnel is a host-agent's WebSocket.
type Tunnel interface {
	// Stream returns the byte stream that binary messages carry.
	Stream() net.Conn

	// Close sends a close frame, and waits briefly for the peer's close frame.
	Close(code ahp.CloseCode, reason string)

	// Kill closes the connection without a close frame.
	Kill()

	// Reads returns the number of reads with data.
	Reads() uint32

	// Ping sends a ping without waiting for the pong.
	Ping(payload string)
}

// An API serves host-agents.
type API struct {
	Config
	tunnels  tunnels
	renewing sync.Mutex // held while takeOver checks and records the credential in use

	enrolling  sync.Mutex                                   // guards enrolments
	enrolments *simplelru.LRU[[sha256.Size]byte, enrolment] // answers of the last minutes, oldest first, by the hash of the request

	arrivals *admission.Arrivals
}

// New returns an API.
func New(cfg Config) *API {
	enrolments, _ := simplelru.NewLRU[[sha256.Size]byte, enrolment](maxEnrolments, nil) // fails only without a limit
	return &API{Config: cfg, arrivals: admission.NewArrivals(), enrolments: enrolments}
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
