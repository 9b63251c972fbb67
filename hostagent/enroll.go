package hostagent

import (
	"context"
	"encoding/base64"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v5"

	"ahprelay/auth"
	"ahprelay/internal/clock"
)

// An Enrolment describes how to trade an enrolment token for a credential.
type Enrolment struct {
	Relays []string     // required; base URLs of one cluster's relays
	Token  string       // required; the enrolment token, which is used up
	File   string       // required; path of the credentials file, which must not exist yet
	Plain  bool         // permits http:// beyond this machine, as in Config
	HTTP   *http.Client // sends requests to the relays; default: as in Config
}

// Enroll trades an enrolment token for a credential bound to a new key of this
// machine, and writes credential and key to a file. It returns the host's
// tenant and name, and the credential's expiry.
func Enroll(ctx context.Context, e Enrolment) (tenant, host string, expires time.Time, err error) {
	if err := checkRelays(e.Relays, nil, e.Plain); err != nil {
		return "", "", expires, err
	}
	file, key := &CredentialFile{path: e.File, relay: e.Relays[0]}, auth.NewHostKey()
	if err := file.makeable(); err != nil { // before the token is used up
		return "", "", expires, err
	}
	a, err := newAccess(e.Relays, nil, func() (string, error) { return e.Token, nil }, e.HTTP)
	if err != nil {
		return "", "", expires, err
	}
	bound := base64.RawURLEncoding.EncodeToString(key.Public())
	answer, err := a.prove(ctx, key, auth.ToEnroll, bound, "/agent/enroll", map[string]any{"key": []byte(key.Public())})
	if err != nil {
		return "", "", expires, err
	}
	return a.tenant, a.host, answer.Expires, file.write(answer.Credential, key)
}

type keyAnswer struct {
	Credential string
	Expires    time.Time
}

// enrolAgain is how often an enrolment's request is repeated to the same relay, which then repeats its answer, with a
// pause of enrolPause before each.
const (
	enrolAgain = 3
	enrolPause = time.Second
)

// prove requests a credential from the first reachable relay. If a relay may
// have received the request, prove does not try another: the token may be used
// up.
func (a *access) prove(ctx context.Context, key *auth.HostKey, purpose auth.Purpose, bound, path string, body map[string]any) (answer keyAnswer, err error) {
	var failures []error
	for _, relay := range a.relays.inOrder() {
		challenge, err := a.challenge(ctx, relay, nil)
		if err != nil {
			if failures = append(failures, err); !temporary(err) {
				break
			}
			continue
		}
		signature, err := key.Prove(purpose, challenge, a.tenant, a.host, bound)
		if err != nil {
			return answer, err
		}
		body["challenge"], body["keySignature"] = challenge, signature
		err = a.post(ctx, relay, path, nil, body, &answer)
		for range enrolAgain {
			if err == nil || !temporary(err) || purpose != auth.ToEnroll || !clock.Sleep(ctx, enrolPause) {
				break
			}
			err = a.post(ctx, relay, path, nil, body, &answer)
		}
		if err != nil {
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

// renewShare sets when a credential is renewed: after its lifetime divided by
// renewShare. With 3, two thirds of the lifetime remain if the machine is off at
// that moment.
const renewShare = 3

// Times of renewal.
const (
	renewRetry = time.Minute     // first wait after a failure
	renewMost  = 6 * time.Hour   // longest wait after failures
	renewSoon  = 5 * time.Second // earliest renewal after the start

	// renewSpread limits the random delay of a renewal: to the time until the
	// renewal divided by renewSpread.
	renewSpread = 10
)

// renewLoop renews the credential before it expires, until ctx ends. redial
// connects to NATS with the new credential. done receives the result of each
// attempt.
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
		case <-a.outdated: // this renewal answers the report; if necessary, a relay repeats it with the next NATS credentials
		default:
		}
		done(expires, err)
		if err == nil {
			wait.Reset()
			pause, _, err = a.renewal() // the whole share: with a wrong clock, the second result may be renewSoon each time
		}
	}
}

// renewal returns the age at which a credential is renewed, including a random
// delay, and how much of that time is left. The second result depends on this
// machine's clock, which may be wrong: it is at least renewSoon and at most share.
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

// renew requests a new credential and uses it at once; that use invalidates the
// previous credential. A second request before that use would leave the
// previous credential valid.
func (a *access) renew(ctx context.Context, redial func()) (expires time.Time, err error) {
	key, err := a.file.Key()
	if err != nil {
		return expires, err
	}
	if err := a.file.writable(); err != nil { // before the new credential is issued
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
	_, _ = a.credentials(ctx) // after an error, the next request for NATS credentials uses the new credential
	return answer.Expires, nil
}

// renewed logs the outcome of a renewal.
func (a *Agent) renewed(expires time.Time, err error) {
	switch {
	case err == nil:
		a.cfg.Log.Info("credential renewed", "expires", expires.UTC().Format(time.RFC3339))
	case temporary(err):
		a.cfg.Log.Warn("credential renewal failed", "effect", "trying again", "error", err)
	default:
		a.cfg.Log.Error("credential renewal failed", "error", err)
	}
}
