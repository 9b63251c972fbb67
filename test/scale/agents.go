package scale

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/link"
	"ahprelay/broker/registry"
	"ahprelay/gateway/api/agents"
	"ahprelay/internal/retryafter"
	"ahprelay/test/load"
)

// Agents are host-agents without hosts, in this process. Each connects as a real
// host-agent does: it requests credentials, and has its own TCP connection, WebSocket
// and NATS login, a second connection to another relay, and a lease. Eight host-agents
// share an IP address. Nothing is compressed, because 20,000 encoders with half a
// megabyte each do not fit into a machine.
type Agents struct {
	KeyDir string   // directory of the relays' keys
	URLs   []string // the relays' base URLs
	First  int      // number of the first host
	Count  int

	Every  time.Duration // between the starts of two host-agents; 0: all start at once
	AtOnce int           // how many may be without a lease at a time; 0: all
}

// realTenant is the tenant of these hosts.
const realTenant = "fleet"

func realHost(i int) string { return fmt.Sprintf("host-%d", i) }

// Run runs the host-agents until ctx ends. Their leases are not released then.
func (a *Agents) Run(ctx context.Context) error {
	keys, err := auth.ExistingKeys(a.KeyDir)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	failed := make([]error, a.Count)
	places := make(chan struct{}, cmp.Or(a.AtOnce, a.Count))
	began := time.Now()
	for i := range a.Count {
		agent, err := a.agent(keys.Tokens(), a.First+i)
		if err != nil {
			return err
		}
		load.Pause(ctx, time.Until(began.Add(time.Duration(i)*a.Every)))
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			running.Wait()
			return errors.Join(failed...)
		}
		running.Go(func() { failed[i] = agent.run(ctx, sync.OnceFunc(func() { <-places })) })
	}
	running.Wait()
	return errors.Join(failed...)
}

// A realAgent is a host-agent among Agents.
type realAgent struct {
	host     string
	instance string
	token    string
	key      *auth.AgentKey
	urls     []string // the relays' URLs, in the order in which the host-agent tries them
	dial     net.Dialer
	http     http.Client
	rests    time.Time // until then, the host-agent requests no credentials, because relays have demanded a pause
	refusals int       // consecutive ones by busy relays
}

func (a *Agents) agent(tokens auth.Tokens, i int) (*realAgent, error) {
	token, err := tokens.IssueHost(auth.Enrolment{Tenant: realTenant, Host: realHost(i), Expires: time.Now().Add(time.Hour)})
	if err != nil {
		return nil, err
	}
	key, err := auth.NewAgentKey()
	if err != nil {
		return nil, err
	}
	office := i / 8
	r := &realAgent{host: realHost(i), instance: link.NewInstance(), token: token, key: key}
	r.dial.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 200, byte(office>>8), byte(office))}
	r.http = http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: r.dial.DialContext}}
	first := i % len(a.URLs)
	r.urls = slices.Concat(a.URLs[first:], a.URLs[:first])
	rest := r.urls[1:] // in a random order, so that the host-agents of a crashed relay spread over all others
	rand.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	return r, nil
}

// run connects the host-agent, and holds its lease until ctx ends. It calls online when
// the host-agent has the lease.
func (r *realAgent) run(ctx context.Context, online func()) error {
	cfg := broker.AgentDialConfig{
		Tenant: realTenant, Host: r.host, Instance: r.instance, Credentials: r.credentials, Sign: r.key.SignNonce,
		Headers: func() (http.Header, error) { return r.headers(), nil }, Dial: r.dial.DialContext,
	}
	for _, u := range r.urls {
		cfg.URLs = append(cfg.URLs, "ws"+strings.TrimPrefix(u, "http")+"/nats")
	}
	conn, err := broker.DialAgent(ctx, cfg)
	if err != nil {
		return ended(ctx, err)
	}
	defer conn.Close()
	holder, err := registry.NewLeaseHolder(registry.LeaseConfig{
		Conn: conn, Tenant: realTenant, Host: r.host, Instance: r.instance,
		Presence: registry.Presence{State: registry.Online, AgentVersion: "scale"}, Quiet: func() bool { return true },
	})
	if err != nil {
		return err
	}
	if err := holder.Acquire(ctx); err != nil {
		return ended(ctx, err)
	}
	online()
	return ended(ctx, holder.Run(ctx))
}

// ended returns nil if ctx has ended, and otherwise err.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (r *realAgent) headers() http.Header {
	return http.Header{"Authorization": {"Bearer " + r.token}}
}

// credentials requests credentials from one relay after another until a relay gives
// them or two relays are busy.
func (r *realAgent) credentials(ctx context.Context) (jwt string, err error) {
	defer r.http.CloseIdleConnections()
	if time.Until(r.rests) > 0 {
		return "", &broker.PauseError{Err: errors.New("the relays asked for a pause"), Until: r.rests}
	}
	var pause time.Duration // the shortest demanded; 0: none
	for _, u := range r.urls {
		if jwt, err = r.credentialsFrom(ctx, u); err == nil {
			r.refusals = 0
			return jwt, nil
		}
		var busy *busyError
		if !errors.As(err, &busy) {
			continue
		}
		if pause > 0 {
			pause = min(pause, busy.after)
			break
		}
		pause = busy.after
	}
	if pause > 0 {
		r.refusals++
		r.rests = time.Now().Add(retryafter.Pause(pause, r.refusals))
		err = &broker.PauseError{Err: err, Until: r.rests}
	}
	return "", err
}

func (r *realAgent) credentialsFrom(ctx context.Context, base string) (string, error) {
	var challenge agents.Challenge
	if err := r.post(ctx, base+"/agent/challenge", struct{}{}, &challenge); err != nil {
		return "", err
	}
	signature, err := auth.SignChallenge(r.key, challenge.Challenge, realTenant, r.host)
	if err != nil {
		return "", err
	}
	var answer agents.Credentials
	err = r.post(ctx, base+"/agent/credentials", agents.Proof{Challenge: challenge.Challenge, NKey: r.key.Public(), Signature: signature}, &answer)
	return answer.JWT, err
}

// mostPause is the longest pause that a relay may demand.
const mostPause = 5 * time.Minute

// A busyError is a busy relay's refusal, with the pause that it demands.
type busyError struct {
	error
	after time.Duration
}

func (r *realAgent) post(ctx context.Context, address string, body, answer any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(data))
	if err != nil {
		return err
	}
	request.Header = r.headers()
	request.Header.Set(broker.InstanceHeader, r.instance)
	response, err := r.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if data, err = io.ReadAll(response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		err := fmt.Errorf("%s: HTTP %d: %s", address, response.StatusCode, data)
		if after := retryafter.Of(response.Header, mostPause); after > 0 {
			return &busyError{err, after}
		}
		return err
	}
	return json.Unmarshal(data, answer)
}
