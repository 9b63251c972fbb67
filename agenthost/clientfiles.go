package agenthost

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strings"

	"ahprelay/ahp"
)

// clientScheme begins the URI of a client's file:
// vscode-agent-client://<clientId>/<scheme>/<authority or ->/<path>.
const clientScheme = "vscode-agent-client"

// asksClient reports whether a resourceRead names a client's file.
func asksClient(raw json.RawMessage) bool {
	var params resourceParams
	return json.Unmarshal(raw, &params) == nil && strings.HasPrefix(params.URI, clientScheme+"://")
}

// clientFile splits the URI of a client's file into the clientId and the URI of the
// file at the client.
func clientFile(uri string) (clientID, inner string, err error) {
	u, err := url.Parse(uri)
	if err != nil {
		return "", "", fail(ahp.CodeInvalidParams, "Bad URI: %s", uri)
	}
	parts := strings.SplitN(u.Path, "/", 4) // "", scheme, authority, path
	if len(parts) < 3 {
		return u.Host, (&url.URL{Scheme: "file", Path: u.Path}).String(), nil
	}
	file := url.URL{Scheme: parts[1], Host: parts[2], Path: "/"}
	if file.Host == "-" {
		file.Host = ""
	}
	if len(parts) == 4 {
		file.Path += parts[3]
	}
	inner = file.String()
	if file.Host == "" && !strings.HasPrefix(inner, file.Scheme+"://") {
		inner = file.Scheme + "://" + strings.TrimPrefix(inner, file.Scheme+":")
	}
	return u.Host, inner, nil
}

// resourceReadRemote answers resourceRead for a client's file. It sends two
// requests to that client, like VS Code's host, and returns the result.
func (rs *resources) resourceReadRemote(c *conn, params resourceParams) (any, error) {
	h := rs.host
	clientID, inner, err := clientFile(params.URI)
	if err != nil {
		return nil, err
	}
	result, readErr := h.ask(c, clientID, "resourceRead", resourceParams{URI: inner})
	_, err = h.ask(c, clientID, "resourceResolve", resourceParams{Channel: rootChannel, URI: inner})
	if err := cmp.Or(readErr, err); err != nil {
		return nil, clientReadError(params.URI, err)
	}
	var content resourceContent
	if err := json.Unmarshal(result, &content); err != nil {
		return nil, clientReadError(params.URI, err)
	}
	data := []byte(content.Data)
	if content.Encoding == "base64" {
		if data, err = base64.StdEncoding.DecodeString(content.Data); err != nil {
			return nil, clientReadError(params.URI, err)
		}
	}
	return newContent(data, params.Encoding, contentType(inner)), nil
}

// clientReadError returns an error with the text that VS Code's host uses.
func clientReadError(uri string, err error) error {
	switch asRPCError(err).Code {
	case ahp.CodeNotFound:
		return fail(ahp.CodeNotFound, "Content not found: %s", uri)
	case ahp.CodePermissionDenied:
		return fail(ahp.CodePermissionDenied, "Permission denied: %s", uri)
	}
	return fail(ahp.CodeInternalError, "Failed to read content: %s: %v", uri, err)
}
