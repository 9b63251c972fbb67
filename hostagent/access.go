package hostagent

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/link"
)

// access holds the URLs, keys and tokens with which one host's agent reaches relays
// and their NATS servers.
type access struct {
	relays    *relays
	elsewhere []string                      // NATS URLs to use instead of the relays' /nats
	token     func() (string, error)        // returns the enrolment token or the credential
	file      *CredentialFile               // holds the credential; nil without one
	hostKey   func() (*auth.HostKey, error) // returns the key bound to the credential; nil without a credential
	http      *http.Client
	pausing   pausing // pauses new requests after a limitError
	tenant    string
	host      string
	instance  string // the instance name of this run of the host-agent
	key       *auth.AgentKey
	compress  string        // compression method towards relays; "" for none
	fetched   func()        // called after new credentials; may be nil
	outdated  chan struct{} // wakes renewLoop when a relay reports an outdated credential; capacity 1
	connected atomic.Bool   // a NATS connection is up
}

// newAccess returns the access for the host that the token names. A nil client stands for
// the default.
func newAccess(relayURLs, natsURLs []string, token func() (string, error), client *http.Client) (*access, error) {
	text, err := token()
	if err != nil {
		return nil, err
	}
	tenant, host, err := auth.PeekHost(text)
	if err != nil {
		return nil, err
	}
	if _, err := auth.PeekRelayKeys(text); err != nil {
		return nil, err
	}
	key, err := auth.NewAgentKey()
	if err != nil {
		return nil, err
	}
	return &access{
		relays: newRelays(relayURLs, tenant, host), elsewhere: natsURLs, token: token, http: cmp.Or(client, newHTTPClient()),
		tenant: tenant, host: host, instance: link.NewInstance(), key: key, outdated: make(chan struct{}, 1),
	}, nil
}

// trusted returns the public keys of the relays that may open links, according to the
// current token.
func (a *access) trusted() ([]ed25519.PublicKey, error) {
	token, err := a.token()
	if err != nil {
		return nil, err
	}
	return auth.PeekRelayKeys(token)
}

func (a *access) verify(signed *auth.Signed, what auth.Statement) error {
	trusted, err := a.trusted()
	if err != nil {
		return err
	}
	return signed.Check(trusted, what)
}

// natsConfig returns the configuration of a NATS connection that tries the
// given URLs. The first connection uses userJWT if it is not empty. answered,
// which may be nil, receives the result of each request for credentials.
func (a *access) natsConfig(urls []string, userJWT string, answered func(error), events broker.Events) broker.AgentDialConfig {
	fetch := func(ctx context.Context) (string, error) {
		if given := userJWT; given != "" {
			userJWT = ""
			return given, nil
		}
		given, err := a.credentials(ctx)
		if answered != nil {
			answered(err)
		}
		return given, err
	}
	a.connected.Store(false)
	return broker.AgentDialConfig{
		URLs: urls, Tenant: a.tenant, Host: a.host, Instance: a.instance,
		Credentials: fetch, Sign: a.key.SignNonce, Headers: a.headers, Compress: a.compress, Events: a.watched(events),
	}
}

// watched returns events that also update a.connected.
func (a *access) watched(events broker.Events) broker.Events {
	up, down := func() { a.connected.Store(true) }, func() { a.connected.Store(false) }
	events.Connected, events.Disconnected, events.Reconnected = first(up, events.Connected), first(down, events.Disconnected), first(up, events.Reconnected)
	return events
}

// first returns a function that calls f and then next, which may be nil.
func first[T any](f func(), next func(T)) func(T) {
	return func(v T) {
		f()
		if next != nil {
			next(v)
		}
	}
}

func (a *access) natsURLs() []string {
	if len(a.elsewhere) > 0 {
		return a.elsewhere
	}
	urls := a.relays.inOrder()
	for i, u := range urls {
		urls[i] = natsURL(u)
	}
	return urls
}

// credentials requests NATS credentials for this host-agent's nkey, from one
// relay after the other. It stops at the first relay that refuses the token:
// all relays have the same keys, so all would refuse it. It also stops at the
// second busy relay, because further requests would only add load.
func (a *access) credentials(ctx context.Context) (userJWT string, err error) {
	if err := a.pausing.err(); err != nil {
		return "", err
	}
	var failures []error
	var limit *limitError
	list := a.relays.inOrder()
	for i, relay := range list {
		one, cancel := share(ctx, len(list)-i)
		userJWT, err := a.credentialsFrom(one, relay)
		cancel()
		if err == nil {
			a.relays.answered(relay)
			a.pausing.granted()
			if a.fetched != nil {
				a.fetched()
			}
			return userJWT, nil
		}
		if refused, ok := errors.AsType[*RefusedError](err); ok && refused.ofToken() {
			return "", err
		}
		failures = append(failures, err)
		var newest *limitError
		if !errors.As(err, &newest) {
			continue
		}
		second := limit != nil && limit.busy && newest.busy
		if !second || newest.after < limit.after {
			limit = newest
		}
		if second {
			break
		}
	}
	err = joined(failures)
	if limit != nil {
		err = &broker.PauseError{Err: err, Until: a.pausing.refused(limit)}
	}
	return "", err
}

// ready reports whether a relay accepts new connections.
func (a *access) ready(ctx context.Context, relay string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(relay, "/")+"/readyz", nil)
	if err != nil {
		return false
	}
	response, err := a.http.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// goHome moves the NATS connection back to the host's first relay whenever that
// relay is ready again, until ctx ends. It does nothing if NATS URLs are configured
// or there is only one relay.
func (a *access) goHome(ctx context.Context, conn *broker.Conn) {
	if len(a.elsewhere) > 0 || len(a.relays.inOrder()) < 2 {
		return
	}
	home := natsURL(a.relays.home)
	goHome(ctx,
		func() bool { return conn.Connected() && !conn.Leads(home) },
		func() bool { return a.ready(ctx, a.relays.home) },
		func() {
			a.relays.answered(a.relays.home)
			conn.Move(home)
		})
}
