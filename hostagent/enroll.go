package hostagent

import (
	"context"
	"encoding/base64"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v5"

	"ahprelay/auth"
)

// An Enrolment says how to get a credential for an enrolment token.
type Enrolment struct {
	Relays []string     // required; base URLs of the relays of one cluster
	Token  string       // required; the enrolment token, which is used up
	File   string       // required; path of the credentials file, which must not be there yet
	Plain  bool         // as of Config
	HTTP   *http.Client // for the relays' base URLs; default: as of Config
}

// Enroll trades an enrolment token for a credential that is bound to a key of
// this machine's own, and writes both to a file. It returns which host it is
// for, and how long the credential is good.
func Enroll(ctx context.Context, e Enrolment) (tenant, host string, expires time.Time, err error) {
	if err := checkRelays(e.Relays); err != nil {
		return "", "", expires, err
	}
	if err := checkPlain(e.Relays, nil); err != nil && !e.Plain {
		return "", "", expires, err
	}
	if e.HTTP == nil {
		e.HTTP = newHTTPClient()
	}
	file, key := &CredentialFile{path: e.File, relay: e.Relays[0]}, auth.NewHostKey()
	if err := file.makeable(); err != nil { // before the token is used up
		return "", "", expires, err
	}
	a, err := newAccess(e.Relays, nil, func() (string, error) { return e.Token, nil }, e.HTTP)
	if err != nil {
		return "", "", expires, err
	}
	said := base64.RawURLEncoding.EncodeToString(key.Public())
	answer, err := a.prove(ctx, key, auth.ToEnroll, said, "/agent/enroll", map[string]any{"key": []byte(key.Public())})
	if err != nil {
		return "", "", expires, err
	}
	return a.tenant, a.host, answer.Expires, file.write(answer.Credential, key)
}

// keyAnswer is a credential, as a relay gives it.
type keyAnswer struct {
	Credential string
	Expires    time.Time
}

// prove asks the first relay that can be reached for a credential. Once a
// relay may have taken the request, no other is asked: it would find the token
// used up.
func (a *access) prove(ctx context.Context, key *auth.HostKey, purpose auth.Purpose, said, path string, body map[string]any) (answer keyAnswer, err error) {
	var failures []error
	for _, relay := range a.relays.inOrder() {
		challenge, err := a.challenge(ctx, relay)
		if err != nil {
			if failures = append(failures, err); !temporary(err) {
				break
			}
			continue
		}
		signature, err := key.Prove(purpose, challenge, a.tenant, a.host, said)
		if err != nil {
			return answer, err
		}
		body["challenge"], body["keySignature"] = challenge, signature
		if err := a.post(ctx, relay, path, body, &answer); err != nil {
			return answer, err
		}
		before, err := a.token()
		if err != nil {
			return answer, err
		}
		return answer, auth.CheckCredential(answer.Credential, before, key.Public())
	}
	return answer, joined(failures)
}

// renewShare is the part of a credential's life after which it is renewed: two
// thirds are left for a machine that is off.
const renewShare = 3

// Times of renewal.
const (
	renewRetry = time.Minute     // first wait after a failure
	renewMost  = 6 * time.Hour   // and the longest one
	renewSoon  = 5 * time.Second // after the start at the earliest

	// renewSpread is one over the part of the time by which a host-agent renews
	// later than another.
	renewSpread = 10
)

// renewLoop renews the credential in time, until ctx ends. Redial has the
// connection to NATS made anew, with the new one. Done is told how it went.
func (a *access) renewLoop(ctx context.Context, redial func(), done func(expires time.Time, err error)) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = renewRetry, renewMost
	_, pause, err := a.renewal()
	for {
		if err != nil {
			pause = wait.NextBackOff()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		case <-a.outdated:
		}
		var expires time.Time
		if expires, err = a.renew(ctx, redial); ctx.Err() != nil {
			return
		}
		select {
		case <-a.outdated: // of what was just renewed; relays that disagree are asked again with the next credentials for NATS
		default:
		}
		done(expires, err)
		if err == nil {
			wait.Reset()
			pause, _, err = a.renewal() // whatever the clocks say
		}
	}
}

// renewal returns after what time a credential is to be renewed, not in step
// with others', and how much of it is left. Clocks may be wrong: it is not more
// than all of it.
func (a *access) renewal() (share, left time.Duration, err error) {
	token, err := a.token()
	if err != nil {
		return 0, 0, err
	}
	issued, expires, err := auth.PeekTimes(token)
	if err != nil {
		return 0, 0, err
	}
	share = expires.Sub(issued) / renewShare
	share += rand.N(share/renewSpread + 1)
	return share, min(max(time.Until(issued.Add(share)), renewSoon), share), nil
}

// renew gets a new credential and puts it to use, which ends the former one. It
// is not done again before that: the one before would never end.
func (a *access) renew(ctx context.Context, redial func()) (expires time.Time, err error) {
	key, err := a.file.Key()
	if err != nil {
		return expires, err
	}
	if err := a.file.writable(); err != nil { // before there is a new one
		return expires, err
	}
	answer, err := a.prove(ctx, key, auth.ToRenew, "", "/agent/renew", map[string]any{})
	if err != nil {
		return expires, err
	}
	if err := a.file.write(answer.Credential, key); err != nil {
		return expires, err
	}
	redial()
	_, _ = a.credentials(ctx) // if it fails, the next that NATS needs do it
	return answer.Expires, nil
}

// renewed tells in the log how a renewal went.
func (a *Agent) renewed(expires time.Time, err error) {
	switch {
	case err == nil:
		a.cfg.Log.Info("credential renewed", "expires", expires.UTC().Format(time.RFC3339))
	case temporary(err):
		a.cfg.Log.Warn("credential could not be renewed; trying again", "error", err)
	default:
		a.cfg.Log.Error("credential could not be renewed", "error", err)
	}
}
