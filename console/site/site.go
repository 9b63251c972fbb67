// Package site makes a static site from the console, for an origin other than the relay's.
package site

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"

	"ahprelay/console"
)

// charset is a line in each page, after which the function [Of] inserts the policy.
const charset = `<meta charset="utf-8">`

// policyField is the header field of a page's policy.
const policyField = "Content-Security-Policy"

// Of returns the console's files, by name, for any web server. Each page contains its own
// policy, because the server may send none. The file _headers lists the header fields in the
// format of common static hosts. Without these fields, other pages can frame the console.
//
// The console's own account is at the first relay. A person may add accounts at all relays.
func Of(relays ...string) (map[string][]byte, error) {
	origins, err := originsOf(relays)
	if err != nil {
		return nil, err
	}
	files, err := console.Files()
	if err != nil {
		return nil, err
	}
	handler := console.Handler("")
	site, policies, fields := map[string][]byte{}, map[string]string{}, http.Header{}
	for path, file := range files {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		content := answer.Body.Bytes()
		if strings.HasPrefix(file.Type, "text/html") {
			policy := answer.Header().Get(policyField)
			head := ""
			if path == "/" {
				const connect = "connect-src 'self'"
				if !strings.Contains(policy, connect) {
					return nil, errors.New("the console's policy has no " + connect)
				}
				sources := ""
				for _, origin := range origins {
					sources += " " + origin + " ws" + strings.TrimPrefix(origin, "http")
				}
				policy = strings.Replace(policy, connect, connect+sources, 1)
				head = meta("relay", origins[0])
				if len(origins) > 1 {
					head += meta("relays", strings.Join(origins[1:], " "))
				}
				fields = answer.Header()
			}
			if !bytes.Contains(content, []byte(charset)) {
				return nil, errors.New(path + " has no " + charset)
			}
			policies[path] = policy
			content = bytes.Replace(content, []byte(charset), []byte(charset+"\n  "+policyMeta(policy)+head), 1)
		}
		site[cmp.Or(strings.TrimPrefix(path, "/"), "index.html")] = content
	}
	site["_headers"] = headers(fields, policies)
	return site, nil
}

func originsOf(relays []string) (origins []string, err error) {
	for _, relay := range relays {
		at, err := url.Parse(relay)
		if err != nil || at.Host == "" || at.Scheme != "https" && at.Scheme != "http" || strings.Trim(at.Path, "/")+at.RawQuery+at.Fragment != "" || at.User != nil {
			return nil, fmt.Errorf("relay %q: want its address, such as https://relay.example.com", relay)
		}
		if origin := at.Scheme + "://" + at.Host; !slices.Contains(origins, origin) {
			origins = append(origins, origin)
		}
	}
	if len(origins) == 0 {
		return nil, errors.New("no relay: want an address, such as https://relay.example.com")
	}
	return origins, nil
}

// meta returns a line with a meta element, which the page's script reads.
func meta(name, content string) string {
	return "\n  " + `<meta name="` + name + `" content="` + html.EscapeString(content) + `">`
}

// policyMeta returns the meta element with a policy. It omits the directives that browsers
// accept only in header fields: frame-ancestors, and sandbox, which the iframe elements
// have as an attribute too.
func policyMeta(policy string) string {
	var kept []string
	for directive := range strings.SplitSeq(policy, "; ") {
		if !strings.HasPrefix(directive, "frame-ancestors") && !strings.HasPrefix(directive, "sandbox") {
			kept = append(kept, directive)
		}
	}
	return `<meta http-equiv="Content-Security-Policy" content="` + html.EscapeString(strings.Join(kept, "; ")) + `">`
}

// ofFile are the header fields that _headers does not set for all files: the policy, and
// fields that a web server sets itself for each file.
var ofFile = []string{policyField, "Cache-Control", "Content-Length", "Content-Type", "Etag", "Vary"}

func headers(fields http.Header, policies map[string]string) []byte {
	var b bytes.Buffer
	b.WriteString("/*\n")
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(ofFile, name) {
			fmt.Fprintf(&b, "  %s: %s\n", name, fields.Get(name))
		}
	}
	for _, path := range slices.Sorted(maps.Keys(policies)) {
		fmt.Fprintf(&b, "%s\n  %s: %s\n", path, policyField, policies[path])
	}
	return b.Bytes()
}
