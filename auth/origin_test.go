package auth_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
)

// TestGrantsCarryTheirOrigins issues each kind of token with origins: the grants that it derives
// from. Verifying it must return the same origins.
func TestGrantsCarryTheirOrigins(t *testing.T) {
	keys, _ := newKeys(t)
	expires := time.Now().Add(time.Hour)
	origins := []auth.Origin{{ID: "token-1", Subject: "ada", Issued: 1}, {ID: "credential-1", Host: "laptop", Issued: 2}}
	verified := func(name string, token string, err error, verify func(string) ([]auth.Origin, error)) {
		t.Helper()
		if err != nil {
			t.Fatalf("issuing %s: %v; want no error", name, err)
		}
		if got, err := verify(token); err != nil || !reflect.DeepEqual(got, origins) {
			t.Errorf("%s: origins %+v, %v; want %+v", name, got, err, origins)
		}
	}
	token, err := keys.Tokens().IssueClient(auth.Client{Tenant: "acme", Subject: "bob", Hosts: []string{"*"}, Access: auth.AccessRead, Expires: expires, Origins: origins})
	verified("client", token, err, func(token string) ([]auth.Origin, error) {
		c, err := keys.Tokens().VerifyClient(token)
		return c.Origins, err
	})
	token, err = keys.Tokens().IssueHost(auth.Enrolment{Tenant: "acme", Host: "laptop", Expires: expires, Origins: origins})
	verified("enrolment", token, err, func(token string) ([]auth.Origin, error) {
		e, err := keys.Tokens().VerifyAgent(token)
		return e.Origins, err
	})
	credential := auth.Enrolment{Tenant: "acme", Host: "laptop", Expires: expires, Key: auth.NewHostKey().Public(), Origins: origins}
	token, err = keys.Tokens().IssueCredential(credential)
	verified("credential", token, err, func(token string) ([]auth.Origin, error) {
		e, err := keys.Tokens().VerifyAgent(token)
		return e.Origins, err
	})
	canvas := auth.CanvasGrant{Tenant: "acme", Subject: "bob", Expires: expires, Origins: origins, CanvasClaims: auth.CanvasClaims{Host: "laptop"}}
	token, err = keys.Canvases().IssueTicket(canvas)
	verified("ticket", token, err, func(token string) ([]auth.Origin, error) {
		g, err := keys.Canvases().VerifyTicket(token)
		return g.Client().Origins, err
	})
	token, err = keys.Canvases().IssueSession(canvas)
	verified("canvas session", token, err, func(token string) ([]auth.Origin, error) {
		g, err := keys.Canvases().VerifySession(token)
		return g.Client().Origins, err
	})
}

// TestOriginsAreBounded fails if a token can be issued with too many or invalid origins.
func TestOriginsAreBounded(t *testing.T) {
	keys, _ := newKeys(t)
	issue := func(origins []auth.Origin) error {
		_, err := keys.Tokens().IssueClient(auth.Client{Tenant: "acme", Subject: "bob", Hosts: []string{"*"}, Access: auth.AccessRead, Expires: time.Now().Add(time.Hour), Origins: origins})
		return err
	}
	chain := func(n int, o auth.Origin) (list []auth.Origin) {
		for range n {
			list = append(list, o)
		}
		return list
	}
	small := auth.Origin{ID: "t", Subject: "ada"}
	if err := issue(chain(auth.MaxOrigins, small)); err != nil {
		t.Errorf("issuing a token with %d origins: %v; want no error", auth.MaxOrigins, err)
	}
	for name, origins := range map[string][]auth.Origin{
		"too many": chain(auth.MaxOrigins+1, small), "too long": chain(5, auth.Origin{ID: "t", Subject: strings.Repeat("x", auth.MaxSubjectLen)}),
	} {
		if err := issue(origins); !errors.Is(err, auth.ErrTooDerived) {
			t.Errorf("%s: %v; want %v", name, err, auth.ErrTooDerived)
		}
	}
	for name, o := range map[string]auth.Origin{
		"no ID": {Subject: "ada"}, "nobody's": {ID: "t"}, "two": {ID: "t", Subject: "ada", Host: "laptop"}, "forged line": {ID: "t\n", Subject: "ada"}, "wildcard": {ID: "t", Host: "*"},
	} {
		if issue([]auth.Origin{o}) == nil {
			t.Errorf("%s: IssueClient succeeds; want an error", name)
		}
	}
}

// TestOriginsIncludeTheMakersOrigins derives grants. Their origins must be the grant they derive
// from, and its origins.
func TestOriginsIncludeTheMakersOrigins(t *testing.T) {
	added := time.Unix(1000, 0)
	device := auth.DeriveFromDevice("device-1", "ada", added, nil)
	access := auth.Client{ID: "minutes", Subject: "ada", Device: "device-1", Key: "thumbprint", IssuedAt: time.Unix(2000, 0), Origins: device}
	if got := access.Derive(); !reflect.DeepEqual(got, []auth.Origin{{ID: "device-1", Subject: "ada", Issued: 1000}}) {
		t.Errorf("grants derived from the device's token have the origins %+v; want the device alone", got)
	}
	token := auth.Client{ID: "month", Subject: "ada", Device: "device-1", IssuedAt: time.Unix(3000, 0), Origins: access.Derive()}
	want := []auth.Origin{{ID: "month", Subject: "ada", Issued: 3000}, {ID: "device-1", Subject: "ada", Issued: 1000}}
	if got := token.Derive(); !reflect.DeepEqual(got, want) {
		t.Errorf("grants derived from a device's token have the origins %+v; want %+v", got, want)
	}
	token.Origins = nil // a relay without origins issued it
	want[1].Issued = 3000
	if got := token.Derive(); !reflect.DeepEqual(got, want) {
		t.Errorf("grants derived from a token without the device's origins have the origins %+v; want %+v", got, want)
	}
	host := auth.Enrolment{ID: "credential", Host: "laptop", IssuedAt: time.Unix(4000, 0), Origins: device}
	if got := host.Derive(); !reflect.DeepEqual(got, append([]auth.Origin{{ID: "credential", Host: "laptop", Issued: 4000}}, device...)) {
		t.Errorf("Derive by a host-agent = %+v; want the credential, and its origins", got)
	}
}

// TestExpiredTokenHasAnID fails unless TokenID returns an expired token's id. With this id, grants
// derived from the token can be revoked.
func TestExpiredTokenHasAnID(t *testing.T) {
	keys, _ := newKeys(t)
	token, err := keys.Tokens().IssueClient(auth.Client{ID: "over", Tenant: "acme", Subject: "bob", Hosts: []string{"*"}, Access: auth.AccessRead, Expires: keys.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	now := keys.Now()
	keys.Now = func() time.Time { return now.Add(2 * time.Hour) }
	if id, _, err := keys.Tokens().TokenID(token); id != "over" || !errors.Is(err, auth.ErrTokenExpired) {
		t.Errorf("TokenID of an expired token = %q, %v; want over, ErrTokenExpired", id, err)
	}
	if c, err := keys.Tokens().VerifyClient(token); c.ID != "" || !errors.Is(err, auth.ErrTokenExpired) {
		t.Errorf("VerifyClient of an expired token = %+v, %v; want ErrTokenExpired", c, err)
	}
	if id, _, err := keys.Tokens().TokenID(token + "x"); id != "" || !errors.Is(err, auth.ErrTokenInvalid) {
		t.Errorf("TokenID of a forged token = %q, %v; want ErrTokenInvalid", id, err)
	}
}
