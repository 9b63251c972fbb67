package test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
	sdkauth "github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/auth/oidc"
	"ahprelay/gateway"
	"ahprelay/test/idp"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// startIssuer runs an OpenID Connect provider. It returns the provider's URL, and a
// function that issues a token for a person and a group.
func startIssuer(t *testing.T) (url string, token func(sub, group string, ttl time.Duration) string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	serve := func(path string, document any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(document)
		})
	}
	serve("/.well-known/openid-configuration", map[string]string{"issuer": server.URL, "jwks_uri": server.URL + "/keys"})
	serve("/keys", jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{KeyID: "one", Key: key.Public(), Algorithm: "ES256", Use: "sig"}}})
	return server.URL, func(sub, group string, ttl time.Duration) string {
		t.Helper()
		token := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{
			"iss": server.URL, "aud": "ahp", "sub": sub, "groups": []string{group}, "iat": time.Now().Unix(), "exp": time.Now().Add(ttl).Unix(),
		})
		token.Header["kid"] = "one"
		signed, err := token.SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return signed
	}
}

// Clients connect with an OpenID Connect provider's tokens. The relay's rules set each
// client's level. A client that renews its token keeps its connection.
func TestRulesSetTheAuthorityOfProviderTokens(t *testing.T) {
	t.Parallel()
	url, token := startIssuer(t)
	rule := func(group string, access auth.Access) oidc.Rule {
		return oidc.Rule{When: []oidc.Condition{{Claim: "groups", Contains: group}}, Hosts: []string{"lap*"}, Access: access}
	}
	provider, err := oidc.New(oidc.Config{Issuer: url, Audience: "ahp", Rules: []oidc.Rule{rule("dev", auth.AccessWrite), rule("guest", auth.AccessRead)}}, oidc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(provider.Close)
	_, server := newRefhost(t, nil)
	s := startStack(t, stack.Config{Upstream: server.URL(), Relay: gateway.RelayConfig{Gateway: gateway.Config{
		Issuers: map[string]auth.Verifier{url: provider},
	}}})
	const greeting = `{"channel":"ahp-root://","clientId":"CLIENT","protocolVersions":["0.9.0"]}`
	dev := dialWith(t, s, token("ann", "dev", time.Hour), refclient.Options{})
	call(t, dev, "initialize", strings.Replace(greeting, "CLIENT", "dev", 1))
	call(t, dev, "createSession", `{"channel":"demo:/one","provider":"demo"}`)
	if got := call(t, dev, "relay/refreshToken", `{"channel":"ahp-root://","token":"`+token("ann", "dev", 2*time.Hour)+`"}`); !strings.Contains(string(got), "expiresAt") {
		t.Errorf("refreshToken returns %s; want the token's end", got)
	}
	for what, other := range map[string]string{"bob's token": token("bob", "dev", time.Hour), "a token of another rule": token("ann", "guest", time.Hour)} {
		if _, err := dev.Call(t.Context(), "relay/refreshToken", map[string]string{"channel": "ahp-root://", "token": other}); !isRefusal(err) {
			t.Errorf("refresh with %s: %v; want error -32009", what, err)
		}
	}
	guest := dialWith(t, s, token("eve", "guest", time.Hour), refclient.Options{})
	call(t, guest, "initialize", strings.Replace(greeting, "CLIENT", "guest", 1))
	call(t, guest, "subscribe", `{"channel":"demo:/one"}`)
	if _, err := guest.Call(t.Context(), "disposeSession", map[string]string{"channel": "demo:/one"}); !isRefusal(err) {
		t.Errorf("disposeSession of a guest: %v; want error -32009", err)
	}
	// The relay refuses a person for whom no rule holds.
	_, err = refclient.Dial(t.Context(), s.URL(stack.Host), refclient.Options{Token: token("ann", "nobody", time.Hour)})
	if refused := new(refclient.HandshakeError); !errors.As(err, &refused) || refused.Status != http.StatusUnauthorized {
		t.Errorf("a token that no rule is for: %v; want HTTP 401", err)
	}
	for _, conn := range s.Tap.Conns() {
		for _, frame := range conn.ToHost() {
			if strings.Contains(string(frame), "refreshToken") {
				t.Errorf("the host got %s; want no refreshToken", frame)
			}
		}
	}
}

func isRefusal(err error) bool {
	var e *refclient.RPCError
	return errors.As(err, &e) && e.Code == ahp.CodePermissionDenied
}

// TestOAuthClientsFindTheirServer requests a resource without a token. The response
// names the resource's metadata (RFC 9728), and the metadata name the provider.
func TestOAuthClientsFindTheirServer(t *testing.T) {
	t.Parallel()
	url, _ := startIssuer(t)
	provider, err := oidc.New(oidc.Config{Issuer: url, Audience: "ahp", Rules: []oidc.Rule{{Hosts: []string{"*"}, Access: auth.AccessRead}}}, oidc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(provider.Close)
	_, server := newRefhost(t, nil)
	s := startStack(t, stack.Config{Upstream: server.URL(), Relay: gateway.RelayConfig{Gateway: gateway.Config{Issuers: map[string]auth.Verifier{url: provider}}}})
	get := func(address string) *http.Response {
		t.Helper()
		response, err := http.Get(address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = response.Body.Close() })
		return response
	}
	for _, path := range []string{"/ahp/" + stack.Host, "/api/hosts"} {
		refused := get(s.Relay.URL() + path)
		_, rest, _ := strings.Cut(refused.Header.Get("WWW-Authenticate"), `resource_metadata="`)
		address, _, ok := strings.Cut(rest, `"`)
		if refused.StatusCode != http.StatusUnauthorized || !ok {
			t.Fatalf("%s answers HTTP %d, %q; want 401 with the metadata's address", path, refused.StatusCode, refused.Header.Get("WWW-Authenticate"))
		}
		var metadata struct {
			Resource string   `json:"resource"`
			Servers  []string `json:"authorization_servers"`
			Methods  []string `json:"bearer_methods_supported"`
		}
		if err := json.NewDecoder(get(address).Body).Decode(&metadata); err != nil {
			t.Fatal(err)
		}
		if metadata.Resource != s.Relay.URL()+path || len(metadata.Servers) != 1 || metadata.Servers[0] != url || len(metadata.Methods) == 0 {
			t.Errorf("the metadata of %s is %+v; want this resource, and the issuer as its server", path, metadata)
		}
	}
}

// TestOAuthClientObtainsATokenByItself gives the MCP SDK's OAuth client a refused
// request. The client must find the metadata and the provider, let a person sign in
// with PKCE, and get a token for the relay's API and the host. Beforehand, it knows
// only its registration and the relay's address.
func TestOAuthClientObtainsATokenByItself(t *testing.T) {
	t.Parallel()
	issuer, _ := idp.Start(t, "")
	provider, err := oidc.New(oidc.Config{Issuer: issuer, Audience: idp.Audience, Rules: []oidc.Rule{{
		When: []oidc.Condition{{Claim: "groups", Contains: "dev"}}, Hosts: []string{"*"}, Access: auth.AccessTalk,
	}}}, oidc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(provider.Close)
	_, server := newRefhost(t, nil)
	s := startStack(t, stack.Config{Upstream: server.URL(), Relay: gateway.RelayConfig{Gateway: gateway.Config{Issuers: map[string]auth.Verifier{issuer: provider}}}})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	handler, err := sdkauth.NewAuthorizationCodeHandler(&sdkauth.AuthorizationCodeHandlerConfig{
		PreregisteredClient: &oauthex.ClientCredentials{ClientID: idp.ToolID}, RedirectURL: "http://127.0.0.1:1/back", Client: client,
		AuthorizationCodeFetcher: func(_ context.Context, ask *sdkauth.AuthorizationArgs) (*sdkauth.AuthorizationResult, error) {
			back := idp.SignIn(t, ask.URL, "ann", "dev").Query()
			return &sdkauth.AuthorizationResult{Code: back.Get("code"), State: back.Get("state"), Iss: back.Get("iss")}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/ahp/" + stack.Host, "/api/hosts"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.Relay.URL()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		refused, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if err := handler.Authorize(t.Context(), request, refused); err != nil {
			t.Fatalf("Authorize after HTTP %d for %s: %v; want no error", refused.StatusCode, path, err)
		}
		source, err := handler.TokenSource(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		token, err := source.Token()
		if err != nil {
			t.Fatal(err)
		}
		hosts, err := oauth2.NewClient(context.WithValue(t.Context(), oauth2.HTTPClient, client), source).Get(s.Relay.URL() + "/api/hosts")
		if err != nil {
			t.Fatal(err)
		}
		_ = hosts.Body.Close()
		if hosts.StatusCode != http.StatusOK {
			t.Errorf("the list of hosts: HTTP %d; want 200", hosts.StatusCode)
		}
		c := dialWith(t, s, token.AccessToken, refclient.Options{})
		call(t, c, "initialize", `{"channel":"ahp-root://","clientId":"tool","protocolVersions":["0.9.0"]}`)
	}
}
