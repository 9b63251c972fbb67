package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/gateway/audit"
	"ahprelay/registry"
)

// How a host-agent gets NATS credentials. Both requests carry its enrolment
// token as Authorization: Bearer.
//
//	POST /agent/challenge    → {"challenge", "tenant", "host"}
//	POST /agent/credentials  {"challenge", "nkey", "signature"} → {"jwt", "expires", "nats", "renew"}
//
// In place of the enrolment token, it may show a credential that it has got for
// one: see enroll.go.
//
// The signature, in base64, is by the private part of nkey: see
// [auth.SignChallenge]. An error is {"error"}.

// Challenge is the answer to POST /agent/challenge.
type Challenge struct {
	Challenge string `json:"challenge"` // to sign
	Tenant    string `json:"tenant"`    // as the token says
	Host      string `json:"host"`
}

// Proof is the body of POST /agent/credentials.
type Proof struct {
	Challenge string `json:"challenge"` // as it came
	NKey      string `json:"nkey"`      // public NATS user key
	Signature []byte `json:"signature"` // in base64

	KeySignature []byte `json:"keySignature,omitempty"` // of a credential's key, see [auth.HostKey]
}

// Credentials is the answer to POST /agent/credentials.
type Credentials struct {
	JWT     string    `json:"jwt"`     // of the NATS user with that nkey
	Expires time.Time `json:"expires"` // by the relay's clock
	NATS    bool      `json:"nats"`    // the NATS server is behind this relay's /nats

	// Renew: relays have other keys than the credential says that was shown. It is to be
	// renewed now; the new one is signed with keys that it names.
	Renew bool `json:"renew,omitempty"`
}

// maxProof is how long the body of a request for credentials may be, in bytes.
const maxProof = 4 << 10

// agentToken returns which host's agent is asking, or answers that it is none.
func (s *Server) agentToken(w http.ResponseWriter, r *http.Request) (auth.Enrolment, bool) {
	token, ok := bearer(r.Header.Get("Authorization"))
	if !ok {
		s.unauthorized(w, r, errors.New("no token: pass the enrolment token as Authorization: Bearer (relay token host)"))
		return auth.Enrolment{}, false
	}
	host, err := s.verifyHost(token)
	if err != nil {
		s.unauthorized(w, r, err)
		return auth.Enrolment{}, false
	}
	s.asking.proved(r)
	return host, true
}

func (s *Server) serveChallenge(w http.ResponseWriter, r *http.Request) {
	if host, ok := s.agentToken(w, r); ok {
		writeJSON(w, http.StatusOK, Challenge{s.cfg.Keys.NewChallenge(), host.Tenant, host.Host})
	}
}

func (s *Server) serveCredentials(w http.ResponseWriter, r *http.Request) {
	host, ok := s.agentToken(w, r)
	if !ok {
		return
	}
	var proof Proof
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxProof)).Decode(&proof); err != nil {
		writeJSON(w, http.StatusBadRequest, map[string]string{"error": "body is no JSON of challenge, nkey and signature"})
		return
	}
	if err := s.cfg.Keys.CheckChallenge(proof.Challenge, host.Tenant, host.Host, proof.NKey, proof.Signature); err != nil {
		writeJSON(w, http.StatusForbidden, map[string]string{"error": err.Error()})
		return
	}
	if !s.provesKey(w, host, auth.ToConnect, proof.Challenge, proof.NKey, proof.KeySignature) {
		return
	}
	if err := s.mayTakeOver(host); err != nil {
		s.unauthorized(w, r, err)
		return
	}
	jwt, expires, err := s.cfg.Keys.AgentUser(host.Tenant, host.Host, proof.NKey, s.cfg.AgentTTL)
	if err != nil {
		writeJSON(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
		return
	}
	if err := s.cfg.Registry.Admit(r.Context(), host, proof.NKey, expires); err != nil {
		s.cfg.Log.Error("credentials cannot be given", "tenant", host.Tenant, "host", host.Host, "error", err)
		why := "NATS does not take this tenant's account now; try again"
		if errors.Is(err, registry.ErrStoreAway) {
			why = "relays cannot take a host that they do not know, because most of their cluster is away; try again"
		}
		writeJSON(w, http.StatusServiceUnavailable, map[string]string{"error": why})
		return
	}
	// Its NATS user is that of the new credential by now: the end of the former
	// does not cut it off.
	if err := s.takeOver(host); err != nil && !errors.Is(err, errNotWritten) { // else its next use tells
		s.unauthorized(w, r, err)
		return
	}
	s.audit.Comings(s.hostLine("enrol", host, r, "NATS credentials until "+expires.Format(time.RFC3339)))
	shown, _ := bearer(r.Header.Get("Authorization"))
	writeJSON(w, http.StatusOK, Credentials{jwt, expires, s.cfg.NATS != nil, host.Key != nil && s.cfg.Keys.Outdated(shown)})
}

// serveNATS joins a host-agent's WebSocket to the NATS server. The server
// asks for NATS credentials in its own protocol; the enrolment token is asked
// for here, so that nobody else's bytes get that far.
func (s *Server) serveNATS(w http.ResponseWriter, r *http.Request) {
	host, ok := s.agentToken(w, r)
	if !ok {
		return
	}
	admitted, over := s.limits.ConnectAgent(host, s.address(r))
	if over != nil {
		s.tooMany(w, over, s.hostLine("", host, r, ""))
		return
	}
	if !s.spliceNATS(w, r, host, admitted.Leave) {
		admitted.Leave()
	}
}

// spliceNATS joins a WebSocket whose owner is known to the NATS server. It
// reports whether it did; leave is called at the end of that.
func (s *Server) spliceNATS(w http.ResponseWriter, r *http.Request, host auth.Enrolment, leave func()) bool {
	// Its credentials may come from another relay: have the account open.
	if err := s.cfg.Registry.Enrol(host.Tenant, host.Host); err != nil {
		s.cfg.Log.Error("host-agent refused", "tenant", host.Tenant, "host", host.Host, "error", err)
		http.Error(w, "the registry does not take this host now; try again", http.StatusServiceUnavailable)
		return false
	}
	s.awaitTenant(r.Context(), host.Tenant)
	server, err := s.cfg.NATS(s.life, host.Tenant, host.Host)
	if err != nil {
		s.cfg.Log.Error("NATS server refuses connections", "error", err)
		http.Error(w, "the NATS server does not take connections now; try again", http.StatusServiceUnavailable)
		return false
	}
	compressed := broker.Compresses(r.Header.Get(broker.CompressHeader))
	if compressed != "" {
		w.Header().Set(broker.CompressHeader, compressed)
	}
	sock, err := accept(s.life, w, r, nil, s.cfg.Stall, websocket.CompressionDisabled)
	if err != nil {
		_ = server.Close()
		return false
	}
	agent := s.agents.join(sock, host)
	if agent == nil {
		sock.close(ahp.CloseShuttingDown, ahp.CloseShuttingDown.Reason())
		_ = server.Close()
		return false
	}
	s.audit.Comings(s.hostLine("host-connect", host, r, ""))
	gone := s.hostLine("host-disconnect", host, r, "")
	s.revokedNow() // who revoked it before it was there
	if !s.spawn(func() {
		defer leave()
		defer s.agents.leave(agent)
		defer s.attendAgent(agent, r.Header.Get(broker.InstanceHeader))()
		gone.Reason = splice(sock, server, compressed != "").Error()
		s.audit.Comings(gone)
	}) {
		s.agents.leave(agent)
		sock.kill()
		_ = server.Close()
		return false
	}
	return true
}

// tenantWait is how long a host-agent waits at most for its tenant's account to be open. If that
// takes longer, its first requests go to nobody, and come again.
const tenantWait = time.Second

func (s *Server) awaitTenant(ctx context.Context, tenant string) {
	ctx, cancel := context.WithTimeout(ctx, tenantWait)
	defer cancel()
	if err := s.cfg.Registry.AwaitTenant(ctx, tenant); err != nil {
		s.cfg.Log.Debug("account of a tenant", "error", err)
	}
}

// hostLine is a line of the audit about a host-agent.
func (s *Server) hostLine(event string, host auth.Enrolment, r *http.Request, detail string) audit.Line {
	return audit.Line{Event: event, Tenant: host.Tenant, Host: host.Host, Token: host.ID, Address: s.address(r), Detail: detail}
}

// splice copies both ways until one side ends, and says which. What comes from
// the host-agent may be compressed.
func splice(sock *socket, server net.Conn, compressed bool) error {
	agent := sock.stream()
	from := io.NopCloser(agent)
	if compressed {
		var err error
		if from, err = broker.NewUnpacker(agent); err != nil {
			_ = server.Close()
			sock.kill()
			return err
		}
	}
	defer from.Close()
	var once sync.Once
	var reason error
	end := func(side string, err error) {
		once.Do(func() { reason = fmt.Errorf("%s side: %w", side, err) })
		_ = server.Close()
		sock.close(ahp.CloseCode(websocket.StatusNormalClosure), "")
	}
	var wg sync.WaitGroup
	wg.Go(func() { end("host-agent", broker.Pump(server, from)) })
	wg.Go(func() { end("NATS", broker.Pump(agent, server)) })
	wg.Wait()
	return reason
}
