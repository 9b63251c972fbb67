package auth

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
)

// ErrNoToken reports that a request has no token.
var ErrNoToken = errors.New("no token: pass one as Authorization: Bearer, ?access_token=, ?tkn= or subprotocol bearer.<token>")

// RequestToken returns the token in a WebSocket handshake. It may be in the Authorization
// header (RFC 6750, section 2.1), in the query (for stock clients), or in the list of
// subprotocols (for browsers). A token may occur in several places, if it is the same.
func RequestToken(r *http.Request) (string, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return "", errors.New("the query of the URL is malformed")
	}
	found := append(query["access_token"], query["tkn"]...)
	for _, header := range r.Header.Values("Authorization") {
		if token, ok := Bearer(header); ok {
			found = append(found, token)
		}
	}
	for _, header := range r.Header.Values("Sec-WebSocket-Protocol") {
		for p := range strings.SplitSeq(header, ",") {
			if token, ok := strings.CutPrefix(strings.TrimSpace(p), "bearer."); ok {
				found = append(found, token)
			}
		}
	}
	if len(found) == 0 {
		return "", ErrNoToken
	}
	for _, token := range found[1:] {
		if token != found[0] {
			return "", errors.New("more than one token given")
		}
	}
	return found[0], nil
}

// Bearer returns the token in an Authorization header with the scheme Bearer, or with
// DPoP, which devices use (RFC 9449, section 7.1).
func Bearer(header string) (string, bool) {
	scheme, token, ok := strings.Cut(header, " ")
	return strings.TrimSpace(token), ok && (strings.EqualFold(scheme, "Bearer") || strings.EqualFold(scheme, "DPoP"))
}
