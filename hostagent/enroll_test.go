package hostagent

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/auth"
)

// A keyRelay issues, renews and checks host credentials like a relay, in memory. It implements
// [http.RoundTripper].
type keyRelay struct {
	t    *testing.T
	keys *auth.Keys

	ttl time.Duration

	mu      sync.Mutex // guards the fields below
	spent   map[string]bool
	gave    []time.Time
	uses    int
	down    bool              // the relay is unreachable
	loses   bool              // the relay handles the request, but its response is lost
	lost    int               // as many responses to enrolments are lost
	said    map[string]string // responses to enrolments, by the request's body: the relay repeats them
	refuses bool              // the relay refuses renewals with the status 500
}

func newKeyRelay(t *testing.T) *keyRelay {
	t.Helper()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &keyRelay{t: t, keys: keys, ttl: auth.DefaultCredentialTTL, spent: map[string]bool{}, said: map[string]string{}}
}

// RoundTrip implements [http.RoundTripper].
func (r *keyRelay) RoundTrip(request *http.Request) (*http.Response, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return nil, errors.New("no route to host")
	}
	data, _ := io.ReadAll(request.Body)
	request.Body = io.NopCloser(bytes.NewReader(data))
	w := httptest.NewRecorder()
	if said, again := r.said[string(data)]; again {
		_, _ = w.WriteString(said)
	} else {
		r.serve(w, request)
	}
	enrols := request.URL.Path == "/agent/enroll"
	if enrols && w.Code == http.StatusOK {
		r.said[string(data)] = w.Body.String()
	}
	if enrols && r.lost > 0 {
		r.lost--
		return nil, errors.New("connection reset")
	}
	if r.loses {
		return nil, errors.New("connection reset")
	}
	return w.Result(), nil
}

func (r *keyRelay) serve(w http.ResponseWriter, request *http.Request) {
	token := strings.TrimPrefix(request.Header.Get("Authorization"), "Bearer ")
	host, err := r.keys.Tokens().VerifyAgent(token)
	if err != nil || r.spent[host.ID] {
		writeError(w, http.StatusUnauthorized, errors.New("token revoked"))
		return
	}
	var body struct {
		Challenge, NKey   string
		Key, KeySignature []byte
	}
	data, _ := io.ReadAll(request.Body)
	if err := json.Unmarshal(data, &body); err != nil {
		r.t.Errorf("the request's body is %s: %v; want JSON", data, err)
	}
	prove := func(key []byte, purpose auth.Purpose, said string) bool {
		err := r.keys.CheckKey(key, purpose, body.Challenge, host.Tenant, host.Host, said, body.KeySignature)
		if err != nil {
			writeError(w, http.StatusForbidden, err)
		}
		return err == nil
	}
	give := func(e auth.Enrolment) {
		e.Tenant, e.Host, e.Expires = host.Tenant, host.Host, time.Now().Add(r.ttl)
		credential, err := r.keys.Tokens().IssueCredential(e)
		if err != nil {
			r.t.Error(err)
		}
		r.gave = append(r.gave, time.Now())
		say(w, http.StatusOK, keyAnswer{credential, e.Expires})
	}
	switch request.URL.Path {
	case "/agent/challenge":
		say(w, http.StatusOK, map[string]string{"challenge": r.keys.NewChallenge(), "tenant": host.Tenant, "host": host.Host})
	case "/agent/enroll":
		if prove(body.Key, auth.ToEnroll, base64.RawURLEncoding.EncodeToString(body.Key)) {
			r.spent[host.ID] = true
			give(auth.Enrolment{Key: body.Key})
		}
	case "/agent/renew":
		if r.refuses {
			writeError(w, http.StatusInternalServerError, errors.New("a bad day"))
		} else if prove(host.Key, auth.ToRenew, "") {
			give(auth.Enrolment{Key: host.Key, Replaces: &auth.Replaced{ID: host.ID, Expires: host.Expires}})
		}
	case "/agent/credentials":
		if prove(host.Key, auth.ToConnect, body.NKey) {
			r.uses++
			if host.Replaces != nil {
				r.spent[host.Replaces.ID] = true
			}
			say(w, http.StatusOK, map[string]any{"jwt": "x", "nats": true})
		}
	}
}

// given returns when the relay issued each credential.
func (r *keyRelay) given() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.gave)
}

func (r *keyRelay) set(down, refuses bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down, r.refuses = down, refuses
}

// enrolled enrolls a host-agent at r, and returns its access with the new credential in a file. A
// second enrolment with the same token must fail.
func enrolled(t *testing.T, r *keyRelay) *access {
	t.Helper()
	token, err := r.keys.Tokens().IssueHost(auth.Enrolment{Tenant: "acme", Host: "laptop", Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "credential")
	e := Enrolment{Relays: []string{"https://relay"}, Token: token, File: path, HTTP: &http.Client{Transport: r}}
	tenant, host, expires, err := Enroll(t.Context(), e)
	if err != nil || tenant != "acme" || host != "laptop" || time.Until(expires).Round(time.Hour) != r.ttl {
		t.Fatalf("Enroll = %s/%s until %v, %v; want acme/laptop, and the credential's lifetime", tenant, host, expires, err)
	}
	e.File += "2"
	if _, _, _, err := Enroll(t.Context(), e); err == nil || !strings.Contains(err.Error(), "revoked") {
		t.Errorf("a second Enroll with the same token = %v; want a refusal", err)
	}
	return openAccess(t, r, path)
}

func openAccess(t *testing.T, r *keyRelay, path string) *access {
	t.Helper()
	file, err := OpenCredentialFile(path)
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAccess([]string{"http://relay"}, nil, file.Token, &http.Client{Transport: r})
	if err != nil {
		t.Fatal(err)
	}
	a.file, a.hostKey = file, file.Key
	return a
}

const day = 24 * time.Hour

// TestCredentialIsRenewed runs a host-agent for years. The host-agent must renew its credential in
// time, also after 50 days without a relay, and the relay must then refuse a copy of the old
// credential.
func TestCredentialIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeyRelay(t)
		a := enrolled(t, r)
		enrolledAt := r.given()[0]
		first, err := os.ReadFile(a.file.path)
		if err != nil {
			t.Fatal(err)
		}
		stolen := filepath.Join(t.TempDir(), "copy")
		if err := os.WriteFile(stolen, first, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openAccess(t, r, stolen).credentials(t.Context()); err != nil {
			t.Errorf("credentials by a copy of the file, before the renewal: %v; want no error", err)
		}
		var redials, failed atomic.Int32
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.renewLoop(ctx, func() { redials.Add(1) }, func(_ time.Time, err error) {
				if err != nil {
					failed.Add(1)
				}
			})
		}()
		time.Sleep(29 * day)
		if len(r.given()) != 1 {
			t.Errorf("the relay issued %d credentials within 29 days; want 1", len(r.given()))
		}
		time.Sleep(5 * day)
		if len(r.given()) != 2 || redials.Load() != 1 || failed.Load() != 0 {
			t.Fatalf("%d credentials within 34 days, %d redials, %d failures; want 2, 1, 0", len(r.given()), redials.Load(), failed.Load())
		}
		var refused *RefusedError
		if _, err := openAccess(t, r, stolen).credentials(t.Context()); !errors.As(err, &refused) || !strings.Contains(err.Error(), "a copy of its file has renewed it") {
			t.Errorf("credentials by a copy of the file, after the renewal: %v; want a refusal that names the possible reason", err)
		}
		if info, err := os.Stat(a.file.path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the credential's file is %v, %v; want mode 0600", info, err)
		}

		r.set(true, false)
		time.Sleep(50 * day)
		r.set(false, true)
		time.Sleep(day)
		r.set(false, false)
		time.Sleep(day)
		if n := failed.Load(); len(r.given()) != 3 || n < 20 || n > 400 {
			t.Errorf("after 50 days without a relay, %d credentials were issued and %d renewals failed; want 3, and at least one failure, but less than one a minute", len(r.given()), n)
		}
		time.Sleep(3 * 365 * day)
		synctest.Wait()
		if n := len(r.given()); n < 33 || n > 39 {
			t.Errorf("the relay issued %d credentials in three years; want one for each 30 to 33 days", n)
		}
		if _, err := a.credentials(t.Context()); err != nil {
			t.Errorf("credentials after three years = %v; want no error", err)
		}
		entries, err := os.ReadDir(filepath.Dir(a.file.path))
		if err != nil || len(entries) != 1 {
			t.Errorf("the directory of the credential has %v, %v; want one file", entries, err)
		}
		cancel()
		<-done
		if slices.ContainsFunc(r.given()[1:], func(at time.Time) bool { return at.Sub(enrolledAt) < 30*day }) {
			t.Error("the credential was renewed before a third of its lifetime; want after it")
		}
	})
}

// TestLostEnrolmentIsRepeated loses the relay's response to an enrolment twice. The host-agent must repeat the
// request, because its token is used up, and get the credential. If each response is lost, it must give up.
func TestLostEnrolmentIsRepeated(t *testing.T) {
	for lost, works := range map[int]bool{2: true, 100: false} {
		synctest.Test(t, func(t *testing.T) {
			r := newKeyRelay(t)
			r.lost = lost
			token, err := r.keys.Tokens().IssueHost(auth.Enrolment{Tenant: "acme", Host: "laptop", Expires: time.Now().Add(day)})
			if err != nil {
				t.Fatal(err)
			}
			_, _, _, err = Enroll(t.Context(), Enrolment{Relays: []string{"https://relay"}, Token: token, File: filepath.Join(t.TempDir(), "credentials"), HTTP: &http.Client{Transport: r}})
			if (err == nil) != works {
				t.Errorf("with %d lost responses, Enroll = %v; want success: %v", lost, err, works)
			}
		})
	}
}

// TestLostRenewalKeepsTheCredential loses the relay's response to a renewal. The host-agent must
// still be able to renew with its old credential.
func TestLostRenewalKeepsTheCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeyRelay(t)
		a := enrolled(t, r)
		before, _ := a.token()
		challenge, err := a.challenge(t.Context(), "http://relay", nil)
		if err != nil {
			t.Fatal(err)
		}
		key, _ := a.hostKey()
		signature, err := key.Prove(auth.ToRenew, challenge, "acme", "laptop", "")
		if err != nil {
			t.Fatal(err)
		}
		r.loses = true
		err = a.post(t.Context(), "http://relay", "/agent/renew", nil, map[string]any{"challenge": challenge, "keySignature": signature}, new(keyAnswer))
		if r.loses = false; err == nil || len(r.gave) != 2 {
			t.Fatalf("the renewal whose answer is lost: %v, %d credentials issued; want an error, and 2", err, len(r.gave))
		}
		if _, err := a.renew(t.Context(), func() {}); err != nil {
			t.Errorf("the next renewal = %v; want no error", err)
		}
		if after, _ := a.token(); after == before {
			t.Error("the renewal has not changed the credential; want a new one")
		}
	})
}

// TestRenewalWithWrongClock has a host-agent whose clock differs from the relay's by ten years. The
// host-agent must renew soon if its clock is ahead, and within the usual time if its clock is
// behind.
func TestRenewalWithWrongClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeyRelay(t)
		a := enrolled(t, r)
		time.Sleep(10 * 365 * day) // a clock ten years ahead
		if _, left, err := a.renewal(); left != renewSoon || err != nil {
			t.Errorf("with a clock that is ahead, the next renewal is in %v, %v; want it at once", left, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		r := newKeyRelay(t)
		late := func() time.Time { return time.Now().Add(10 * 365 * day) }
		a := enrolled(t, r)
		r.keys.Now = late
		key, _ := a.hostKey()
		credential, err := r.keys.Tokens().IssueCredential(auth.Enrolment{Tenant: "acme", Host: "laptop", Key: key.Public(), Expires: late().Add(r.ttl)})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.file.write(credential, key); err != nil {
			t.Fatal(err)
		}
		if share, left, err := a.renewal(); left > share || err != nil {
			t.Errorf("with a clock that is behind, the next renewal is in %v, %v; want at most %v", left, err, share)
		}
	})
}

func TestEnrollRefuses(t *testing.T) {
	r := newKeyRelay(t)
	token, err := r.keys.Tokens().IssueHost(auth.Enrolment{Tenant: "acme", Host: "laptop", Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, relay, token, file, want string
		down                           bool
	}{
		{"no relay", "", token, "new", "want http://host:port", false},
		{"plain", "http://relay", token, filepath.Join(dir, "new"), "--relay-plain", false},
		{"no token", "https://relay", "x", "new", "want what relay token host prints", false},
		{"a file", "https://relay", token, there, "exists; move it away", false},
		{"no directory", "https://relay", token, filepath.Join(dir, "no", "dir"), "no such file", false},
		{"relay away", "https://relay", token, filepath.Join(dir, "new"), "cannot be reached", true},
	} {
		r.down = c.down
		_, _, _, err := Enroll(t.Context(), Enrolment{Relays: []string{c.relay}, Token: c.token, File: c.file, HTTP: &http.Client{Transport: r}})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		}
		if len(r.spent) > 0 || len(r.gave) > 0 {
			t.Errorf("%s: the enrolment token is used up; want it unused", c.name)
		}
	}
}

func TestCredentialFileRefuses(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"others can read it": {`{"credential":"x","key":"AAAA"}`, 0o640, "run: chmod 600"},
		"empty":              {``, 0o600, "damaged"},
		"no JSON":            {`token`, 0o600, "damaged"},
		"no credential":      {`{"key":"AAAA"}`, 0o600, "damaged"},
		"no key":             {`{"credential":"x"}`, 0o600, "host key: 0 bytes"},
		"too long":           {strings.Repeat(" ", maxCredentialFile+1), 0o600, "not a credentials file"},
	} {
		path := filepath.Join(dir, "f")
		_ = os.Remove(path)
		if err := os.WriteFile(path, []byte(c.text), c.mode); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenCredentialFile(path); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
	if _, err := OpenCredentialFile(filepath.Join(dir, "none")); err == nil || !strings.Contains(err.Error(), `"host-agent enroll" makes one`) {
		t.Errorf("OpenCredentialFile without a file: %v; want that \"host-agent enroll\" makes one", err)
	}
	if _, err := OpenCredentialFile(filepath.Join(dir, "f", "below")); err == nil || strings.Contains(err.Error(), "makes one") {
		t.Errorf("OpenCredentialFile below a file: %v; want no advice to make a file there", err)
	}
}

// TestSentinelGetsCredentialsByProof fails unless the sentinel can request NATS credentials with
// the credential and the key of its host-agent.
func TestSentinelGetsCredentialsByProof(t *testing.T) {
	r := newKeyRelay(t)
	a := &Agent{access: enrolled(t, r)}
	in, err := a.sentinelInput()
	if err != nil || len(in.Key) == 0 {
		t.Fatalf("input of the sentinel: %+v, %v; want the key in it", in, err)
	}
	s, err := in.access(&http.Client{Transport: r})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.credentials(t.Context()); err != nil || r.uses != 1 {
		t.Errorf("the sentinel's request for credentials = %v, and the relay verified %d proofs; want no error, and 1", err, r.uses)
	}
}
