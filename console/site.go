package console

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"html"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// charset is the line of each page behind which Site puts the policy.
const charset = `<meta charset="utf-8">`

// Site returns the console's files, by name, for a web server of an origin that is not
// the relay's. Each page contains its own policy, because any web server may serve it.
// The file _headers has the header fields in the form of common static hosts: without
// them, other pages can frame this one.
func Site(relay string) (map[string][]byte, error) {
	at, err := url.Parse(relay)
	if err != nil || at.Host == "" || at.Scheme != "https" && at.Scheme != "http" || strings.Trim(at.Path, "/")+at.RawQuery+at.Fragment != "" || at.User != nil {
		return nil, fmt.Errorf("relay %q: want its address, such as https://relay.example.com", relay)
	}
	origin := at.Scheme + "://" + at.Host
	page := fmt.Sprintf(consolePolicy, " "+origin+" ws"+strings.TrimPrefix(origin, "http"), "")
	files, err := Files()
	if err != nil {
		return nil, err
	}
	site := map[string][]byte{}
	policies := map[string]string{"/": page, appPage: appPolicy(nil, "")}
	maps.Copy(policies, framePolicies)
	for path, f := range files {
		content := f.plain
		if strings.HasPrefix(f.Type, "text/html") {
			head := policyMeta(cmp.Or(policies[path], page))
			if path == "/" {
				head += "\n  " + `<meta name="relay" content="` + html.EscapeString(origin) + `">`
			}
			if !bytes.Contains(content, []byte(charset)) {
				return nil, errors.New(path + " has no " + charset)
			}
			content = bytes.Replace(content, []byte(charset), []byte(charset+"\n  "+head), 1)
		}
		name := strings.TrimPrefix(path, "/")
		site[cmp.Or(name, "index.html")] = content
	}
	site["_headers"] = siteHeaders(policies)
	return site, nil
}

// policyMeta returns the element with a policy, without the directives that browsers
// read in header fields only. Frames are sandboxed by their element as well.
func policyMeta(policy string) string {
	var kept []string
	for directive := range strings.SplitSeq(policy, "; ") {
		if !strings.HasPrefix(directive, "frame-ancestors") && !strings.HasPrefix(directive, "sandbox") {
			kept = append(kept, directive)
		}
	}
	return `<meta http-equiv="Content-Security-Policy" content="` + html.EscapeString(strings.Join(kept, "; ")) + `">`
}

func siteHeaders(policies map[string]string) []byte {
	var b bytes.Buffer
	b.WriteString("/*\n")
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		fmt.Fprintf(&b, "  %s: %s\n", name, headers[name])
	}
	for _, path := range slices.Sorted(maps.Keys(policies)) {
		fmt.Fprintf(&b, "%s\n  Content-Security-Policy: %s\n", path, policies[path])
	}
	return b.Bytes()
}
