package auth_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"ahprelay/auth"
)

func TestRequestHasAtMostOneToken(t *testing.T) {
	const different, malformed = "more than one token given", "the query of the URL is malformed"
	for _, test := range []struct {
		name   string
		query  string
		header http.Header
		want   string
		err    string
	}{
		{name: "none", err: auth.ErrNoToken.Error()},
		{name: "header", header: http.Header{"Authorization": {"Bearer one"}}, want: "one"},
		// RFC 9110, section 11.1: the scheme ignores the case.
		{name: "scheme", header: http.Header{"Authorization": {"bEARER  one "}}, want: "one"},
		{name: "basic", header: http.Header{"Authorization": {"Basic b25lOnR3bw=="}}, err: auth.ErrNoToken.Error()},
		{name: "bare", header: http.Header{"Authorization": {"one"}}, err: auth.ErrNoToken.Error()},
		{name: "access_token", query: "access_token=one", want: "one"},
		{name: "tkn", query: "x=1&tkn=one", want: "one"},
		{name: "subprotocol", header: http.Header{"Sec-Websocket-Protocol": {"ahp, bearer.one"}}, want: "one"},
		{name: "subprotocols in lines", header: http.Header{"Sec-Websocket-Protocol": {"ahp", "bearer.one"}}, want: "one"},
		{name: "everywhere", query: "access_token=one&tkn=one", header: http.Header{
			"Authorization": {"Bearer one"}, "Sec-Websocket-Protocol": {"bearer.one"},
		}, want: "one"},
		{name: "two in the query", query: "tkn=one&tkn=two", err: different},
		{name: "header and query", query: "tkn=one", header: http.Header{"Authorization": {"Bearer two"}}, err: different},
		{name: "two headers", header: http.Header{"Authorization": {"Bearer one", "Bearer two"}}, err: different},
		{name: "two subprotocols", header: http.Header{"Sec-Websocket-Protocol": {"bearer.one,bearer.two"}}, err: different},
		// An empty token counts, too.
		{name: "empty and another", query: "tkn=", header: http.Header{"Authorization": {"Bearer one"}}, err: different},
		{name: "malformed query", query: "tkn=%zz", err: malformed},
		{name: "semicolon", query: "tkn=one;x=2", err: malformed},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &http.Request{URL: &url.URL{RawQuery: test.query}, Header: test.header}
			got, err := auth.RequestToken(r)
			if got != test.want || fmt.Sprint(err) != test.err && (err != nil || test.err != "") {
				t.Errorf("RequestToken = %q, %v; want %q, %s", got, err, test.want, test.err)
			}
		})
	}
}

// FuzzRequestToken fails if RequestToken returns text that was not in the request, or an error that
// contains the token.
func FuzzRequestToken(f *testing.F) {
	f.Add("tkn=secret", "Bearer secret", "ahp, bearer.secret")
	f.Add("access_token=%73ecret&tkn=;", "bearer  secret", "bearer.")
	f.Fuzz(func(t *testing.T, query, authorization, protocols string) {
		r := &http.Request{URL: &url.URL{RawQuery: query}, Header: http.Header{
			"Authorization": {authorization}, "Sec-Websocket-Protocol": {protocols},
		}}
		token, err := auth.RequestToken(r)
		if err != nil && token != "" {
			t.Errorf("RequestToken = %q, %v; want no token with an error", token, err)
		}
		if err != nil && strings.Contains(query+authorization+protocols, "secret") && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error %q contains the token", err)
		}
		decoded, _ := url.QueryUnescape(query)
		if err == nil && !strings.Contains(query+decoded+authorization+protocols, token) {
			t.Errorf("the token %q is not in the request; want one from it", token)
		}
	})
}
