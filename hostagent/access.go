package hostagent

import (
	"context"
	"crypto/ed25519"
	"errors"
	"net/http"
	"strings"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/link"
)

// access is what it takes to reach relays and their NATS as the agent of one
// host.
type access struct {
	relays    *relays
	elsewhere []string                      // where NATS is, if not behind the relays' /nats
	token     func() (string, error)        // the enrolment token, or a credential
	file      *CredentialFile               // of the credential; nil: none
	hostKey   func() (*auth.HostKey, error) // that the credential is bound to; nil: none
	http      *http.Client
	tenant    string
	host      string
	instance  string // the name of this run
	key       *auth.AgentKey
	compress  string        // the method for what goes to relays; "": none
	fetched   func()        // called after credentials have come; may be nil
	outdated  chan struct{} // for renewLoop: relays say that the credential is; holds one
}

// newAccess returns access to the host that the token names.
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
		relays: newRelays(relayURLs, tenant, host), elsewhere: natsURLs, token: token, http: client,
		tenant: tenant, host: host, instance: link.NewInstance(), key: key, outdated: make(chan struct{}, 1),
	}, nil
}

// trusted returns the keys of the relays that may have links, as the token of
// this moment says.
func (a *access) trusted() ([]ed25519.PublicKey, error) {
	token, err := a.token()
	if err != nil {
		return nil, err
	}
	return auth.PeekRelayKeys(token)
}

// natsConfig says how to connect to NATS, through any of the URLs. It begins with
// the given credentials, if there are any.
func (a *access) natsConfig(urls []string, userJWT string, events broker.Events) broker.AgentDialConfig {
	fetch := func(ctx context.Context) (string, error) {
		if given := userJWT; given != "" {
			userJWT = ""
			return given, nil
		}
		return a.credentials(ctx)
	}
	return broker.AgentDialConfig{
		URLs: urls, Tenant: a.tenant, Host: a.host, Instance: a.instance,
		Credentials: fetch, Sign: a.key.SignNonce, Headers: a.headers, Compress: a.compress, Events: events,
	}
}

// natsURLs are where NATS is: what the first leads to is what all lead to.
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

// credentials gets NATS credentials for this host-agent's nkey from the first
// relay that gives them: all have the same keys. That one of them refuses the
// enrolment token is therefore final.
func (a *access) credentials(ctx context.Context) (userJWT string, err error) {
	var failures []error
	list := a.relays.inOrder()
	for i, relay := range list {
		one, cancel := share(ctx, len(list)-i)
		userJWT, err := a.credentialsFrom(one, relay)
		cancel()
		if err == nil {
			a.relays.answered(relay)
			if a.fetched != nil {
				a.fetched()
			}
			return userJWT, nil
		}
		var refused *RefusedError
		if errors.As(err, &refused) && refused.ofToken() {
			return "", err
		}
		failures = append(failures, err)
	}
	return "", joined(failures)
}

// ready reports whether a relay takes new connections.
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

// goHome is goHome for the relay that this host begins with, if NATS is behind relays.
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
