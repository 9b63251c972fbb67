package oidc_test

import (
	"errors"
	"net/http"
	"sync/atomic"
	"testing"

	"ahprelay/auth"
	"ahprelay/auth/oidc"
)

// TestCodeOfAnotherProviderIsNotTraded finishes sign-ins with and without iss (RFC 9207), at
// providers that announce iss and that do not. The relay must send the code to the token endpoint
// only if it can come from this provider.
func TestCodeOfAnotherProviderIsNotTraded(t *testing.T) {
	for _, test := range []struct {
		name   string
		gives  any // what the discovery document says about iss; nil for nothing
		iss    func(*issuer) string
		traded bool
	}{
		{"its own", true, (*issuer).url, true},
		{"none, though it gives iss", true, func(*issuer) string { return "" }, false},
		{"another's", true, func(*issuer) string { return "https://login.example.net" }, false},
		{"nearly its own", true, func(i *issuer) string { return i.url() + "/" }, false},
		{"none", nil, func(*issuer) string { return "" }, true},
		{"none, and it says so", false, func(*issuer) string { return "" }, true},
		{"its own, though it does not say so", nil, (*issuer).url, true},
		{"another's, though it does not give iss", nil, func(*issuer) string { return "https://login.example.net" }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			i := newIssuer(t)
			var traded atomic.Int64
			i.set(func(i *issuer) {
				i.discovery = func(w http.ResponseWriter, _ *http.Request) {
					says := map[string]any{"issuer": i.url(), "jwks_uri": i.URL + "/keys", "authorization_endpoint": i.URL + "/authorize", "token_endpoint": i.URL + "/keys?token"}
					if test.gives != nil {
						says["authorization_response_iss_parameter_supported"] = test.gives
					}
					writeJSON(w, says)
				}
				i.jwks = func(w http.ResponseWriter, r *http.Request) {
					traded.Add(1)
					w.WriteHeader(http.StatusBadRequest)
				}
			})
			cfg := i.config()
			cfg.ClientID = "relay"
			in, err := oidc.NewSignIn(cfg)
			if err != nil {
				t.Fatal(err)
			}
			_, err = in.Finish(t.Context(), "https://relay.example.com/signin", oidc.Response{Code: "c", Issuer: test.iss(i)}, auth.SignIn{})
			if errors.Is(err, oidc.ErrOtherIssuer) == test.traded || (traded.Load() > 0) != test.traded {
				t.Errorf("Finish: %v, and the code was sent to the provider %d times; want it sent: %v", err, traded.Load(), test.traded)
			}
		})
	}
}
