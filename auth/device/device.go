// Package device implements a command-line client that signs in like a device: a person
// approves it by a code (RFC 8628), and it proves its key with each request (RFC 9449).
// The relay's side is in package gateway/api/people.
//
// A [Device] is stored with its key, in the system's key store or in a file that only its
// owner can read. A copy has the device's access until the device is removed.
package device

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"ahprelay/auth"
	"ahprelay/internal/clock"
)

// Limits for a relay's responses.
const (
	timeout   = 10 * time.Second
	maxAnswer = 256 << 10 // bytes
	maxLife   = time.Hour // longest lifetime of a code
	minPoll   = time.Second
	maxPoll   = time.Minute
	slowDown  = 5 * time.Second // added to the interval when the relay asks for it (RFC 8628, section 3.5)
	early     = time.Minute     // a token is renewed this time before it expires
)

// A Refused is an error response from the relay.
type Refused struct {
	Status int
	Name   string // error code from RFC 6749 or 8628, or ""
	Text   string // explanation
}

func (e *Refused) Error() string {
	if e.Name == "invalid_grant" {
		return e.Text + " (ahp-connect login)"
	}
	return e.Text
}

// A Device is signed in, or requests access. It is safe for concurrent use.
type Device struct {
	Relay   string // base URL
	ID      string
	Tenant  string
	Subject string

	key  *auth.DeviceKey
	http *http.Client

	mu     sync.Mutex // guards the fields below
	nonce  string
	access string
	until  time.Time
}

type kept struct {
	Relay   string `json:"relay"`
	ID      string `json:"device"`
	Tenant  string `json:"tenant"`
	Subject string `json:"subject"`
	Key     []byte `json:"key"`
}

// Login configures a request for access.
type Login struct {
	Relay   string // required; base URL, or an invitation's link
	Name    string // shown to the approving person
	Machine string
	User    string
	Plain   bool // allow http:// to a different machine

	// Show displays the code. Required.
	Show func(Code)
}

// A Code is shown while the device waits for approval.
type Code struct {
	Code        string // the code that a person types
	Page        string // URL of the page on which a person types the code
	Link        string // URL of that page, with the request but without the code
	Fingerprint string // fingerprint of the key, which the page shows too
	Expires     time.Time
}

type answer struct {
	Access   string `json:"access_token"`
	Seconds  int    `json:"expires_in"`
	ID       string `json:"device"`
	Tenant   string `json:"tenant"`
	Subject  string `json:"subject"`
	Device   string `json:"device_code"`
	User     string `json:"user_code"`
	Page     string `json:"verification_uri"`
	Link     string `json:"verification_uri_complete"`
	Interval int    `json:"interval"`
}

func newDevice(relay string, key *auth.DeviceKey) *Device {
	return &Device{Relay: strings.TrimRight(relay, "/"), key: key, http: &http.Client{
		Timeout:       timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// BaseURL returns a relay's base URL without a slash at its end. It refuses a path: the console's service worker, buttons in
// notifications, and proofs of devices need the relay at the root of its host name. The error hides a text that may contain a secret.
func BaseURL(text string) (string, error) {
	u, err := parseBase(text)
	if err != nil {
		return "", err
	}
	return u.String(), nil
}

func parseBase(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case strings.ContainsAny(text, "@?#"):
		text = "…"
	case err != nil, u.Hostname() == "", strings.Trim(u.Path, "/") != "":
	case strings.HasPrefix(text, "http://"), strings.HasPrefix(text, "https://"):
		return &url.URL{Scheme: u.Scheme, Host: u.Host}, nil
	}
	return nil, fmt.Errorf("%q: want http://host:port or https://host, without a path, user, query or fragment", text)
}

// CheckRelay returns an error unless relay is a valid base URL. If plain is false, http://
// is valid only for this machine.
func CheckRelay(relay string, plain bool) error {
	u, err := parseBase(relay)
	if err != nil {
		return err
	}
	ip := net.ParseIP(u.Hostname())
	if local := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback(); u.Scheme == "http" && !local && !plain {
		return fmt.Errorf("%s is not encrypted, and not on this machine: use https://, or in a private network --relay-plain", relay)
	}
	return nil
}

// Run requests access, and returns the device when a person has approved it. With an
// invitation's link, the device needs no approval.
func (l Login) Run(ctx context.Context) (*Device, error) {
	relay, invite, invited := strings.Cut(l.Relay, "/setup#")
	if err := CheckRelay(relay, l.Plain); err != nil {
		return nil, err
	}
	key, err := auth.NewDeviceKey()
	if err != nil {
		return nil, err
	}
	d := newDevice(relay, key)
	if invited {
		var got answer
		if err := d.send(ctx, http.MethodPost, "/auth/setup", "", map[string]string{"invite": invite, "name": l.Name}, &got); err != nil {
			return nil, err
		}
		d.came(got)
		return d, nil
	}
	var asked answer
	ask := url.Values{"kind": {"device"}, "name": {l.Name}, "machine": {l.Machine}, "user": {l.User}}
	if err := d.send(ctx, http.MethodPost, "/auth/device", "", ask, &asked); err != nil {
		return nil, err
	}
	if asked.Device == "" || asked.User == "" {
		return nil, fmt.Errorf("the server at %s is not a relay of this version", l.Relay)
	}
	life := min(time.Duration(asked.Seconds)*time.Second, maxLife)
	l.Show(Code{asked.User, asked.Page, asked.Link, auth.Fingerprint(key.Thumbprint()), time.Now().Add(life)})
	ctx, cancel := context.WithTimeoutCause(ctx, life, errors.New("not approved in time; start again"))
	defer cancel()
	if err := d.poll(ctx, asked); err != nil {
		return nil, err
	}
	return d, nil
}

// poll asks the relay repeatedly until a person has decided.
func (d *Device) poll(ctx context.Context, asked answer) error {
	wait := min(max(time.Duration(asked.Interval)*time.Second, minPoll), maxPoll)
	poll := url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:device_code"}, "device_code": {asked.Device}}
	for {
		if !clock.Sleep(ctx, wait) {
			return context.Cause(ctx)
		}
		var got answer
		err := d.send(ctx, http.MethodPost, "/auth/token", "", poll, &got)
		var refused *Refused
		switch {
		case err == nil:
			d.came(got)
			return nil
		case !errors.As(err, &refused), refused.Status >= http.StatusInternalServerError, refused.Name == "authorization_pending": // poll again: the relay may return, or a person decide
		case refused.Name == "slow_down":
			wait = min(wait+slowDown, maxPoll)
		default:
			return err
		}
	}
}

// came stores the identity and token of an approved device.
func (d *Device) came(got answer) {
	d.ID, d.Tenant, d.Subject = got.ID, got.Tenant, got.Subject
	d.took(got)
}

// took stores a token, and when to renew it.
func (d *Device) took(got answer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	// Round removes the monotonic reading, because that clock stops while the machine sleeps.
	d.access, d.until = got.Access, time.Now().Add(time.Duration(got.Seconds)*time.Second-early).Round(0)
}

// Open reads a device from a file with the result of Encode.
func Open(path string) (*Device, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("device: %w; sign in with ahp-connect login", err)
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("device: %s has mode %04o, so other users may use it; run: chmod 600 %[1]s", path, info.Mode().Perm())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("device: %w", err)
	}
	d, err := Decode(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return d, nil
}

// errDamaged reports data that Encode did not produce.
var errDamaged = errors.New("the device's record is damaged; sign in again with ahp-connect login")

// Decode returns a device encoded by Encode.
func Decode(data []byte) (*Device, error) {
	var k kept
	if json.Unmarshal(data, &k) != nil || k.Relay == "" || k.ID == "" {
		return nil, errDamaged
	}
	key, err := auth.ReadDeviceKey(k.Key)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	d := newDevice(k.Relay, key)
	d.ID, d.Tenant, d.Subject = k.ID, k.Tenant, k.Subject
	return d, nil
}

// Encode returns the device as JSON, including its private key.
func (d *Device) Encode() ([]byte, error) {
	key, err := d.key.Private()
	if err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(kept{d.Relay, d.ID, d.Tenant, d.Subject, key}, "", "  ")
	return append(data, '\n'), err
}

// Call sends a request with the device's access token, and decodes the response into the
// argument into. body is sent as JSON unless it is nil.
func (d *Device) Call(ctx context.Context, method, path string, body, into any) error {
	d.mu.Lock()
	token, fresh := d.access, time.Now().Before(d.until)
	d.mu.Unlock()
	if !fresh {
		var got answer
		if err := d.send(ctx, http.MethodPost, "/auth/token", "", url.Values{"grant_type": {"device"}, "device": {d.ID}}, &got); err != nil {
			return err
		}
		d.took(got)
		token = got.Access
	}
	return d.send(ctx, method, path, token, body, into)
}

// send sends a request with a proof. If the relay refuses the proof's nonce, send repeats
// the request once with the relay's new nonce.
func (d *Device) send(ctx context.Context, method, path, token string, body, into any) error {
	u, err := url.Parse(d.Relay + path)
	if err != nil {
		return err
	}
	content, kind, err := encode(body)
	if err != nil {
		return err
	}
	for again := true; ; again = false {
		d.mu.Lock()
		nonce := d.nonce
		d.mu.Unlock()
		proof, err := d.key.Prove(auth.Asked{Method: method, URLs: []string{d.Relay + path}, Token: token}, nonce)
		if err != nil {
			return err
		}
		request, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(content))
		if err != nil {
			return err
		}
		request.Header.Set("DPoP", proof)
		if token != "" {
			request.Header.Set("Authorization", "DPoP "+token)
		}
		if kind != "" {
			request.Header.Set("Content-Type", kind)
		}
		status, data, fresh, err := d.exchange(request)
		if err != nil {
			return err
		}
		if status == http.StatusUnauthorized && fresh && again {
			continue
		}
		return read(d.Relay, status, data, into)
	}
}

// exchange sends a request. fresh reports whether the response has a new nonce.
func (d *Device) exchange(request *http.Request) (status int, data []byte, fresh bool, err error) {
	response, err := d.http.Do(request)
	if err != nil {
		if inURL, ok := errors.AsType[*url.Error](err); ok {
			err = inURL.Err
		}
		return 0, nil, false, fmt.Errorf("no relay answers at %s: check the network and the relay's URL (%w)", d.Relay, err)
	}
	defer response.Body.Close()
	data, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if nonce := response.Header.Get("DPoP-Nonce"); nonce != "" {
		d.mu.Lock()
		d.nonce = nonce
		d.mu.Unlock()
		fresh = true
	}
	return response.StatusCode, data, fresh, err
}

func encode(body any) (content []byte, kind string, err error) {
	switch body := body.(type) {
	case nil:
		return nil, "", nil
	case url.Values:
		return []byte(body.Encode()), "application/x-www-form-urlencoded", nil
	default:
		content, err = json.Marshal(body)
		return content, "application/json", err
	}
}

// read decodes a response into the argument into, or returns the relay's error.
func read(relay string, status int, data []byte, into any) error {
	if status == http.StatusOK {
		if into == nil {
			return nil
		}
		if err := json.Unmarshal(data, into); err != nil {
			return fmt.Errorf("the server at %s is not a relay of this version: %w", relay, err)
		}
		return nil
	}
	var said struct {
		Error       string
		Description string `json:"error_description"`
	}
	refused := &Refused{Status: status, Text: strings.TrimSpace(string(data[:min(len(data), 200)]))}
	if json.Unmarshal(data, &said) == nil && said.Error != "" {
		refused.Text = said.Error
		if said.Description != "" {
			refused.Name, refused.Text = said.Error, said.Description
		}
	}
	elsewhere := said.Error == "" && (status == http.StatusNotFound || status == http.StatusMethodNotAllowed)
	if elsewhere || refused.Text == "" || strings.HasPrefix(refused.Text, "<") { // "<": a web page
		refused.Text = fmt.Sprintf("the server at %s is not a relay of this version (HTTP %d): check the URL", relay, status)
	}
	return refused
}
