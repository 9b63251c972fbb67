package contentproxy

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// An origin is a source of canvas content: a web server on the loopback interface, or a server or
// folder that the host's owner has allowed.
type origin struct {
	scheme string // http; https or file if allowed
	host   string // localhost, 127.0.0.1 or [::1], or an allowed name; a folder's path
	port   string // "80" or "443" if the URL has none; filesScheme for a folder
}

// loopbackNames are the host names that mean the loopback interface. Other notations, and names
// that DNS would resolve, do not count.
var loopbackNames = []string{"localhost", "127.0.0.1", "[::1]"}

// splitOrigin parses the URL of a web server, and returns its origin. The last result is false if
// the URL is invalid.
func splitOrigin(text string) (origin, *url.URL, bool) {
	scheme, _, _ := strings.Cut(text, "://")
	if defaultPorts[scheme] == "" || len(text) > maxAddress {
		return origin{}, nil, false
	}
	u, err := url.Parse(text)
	if err != nil || u.User != nil || u.Host == "" {
		return origin{}, nil, false
	}
	o := origin{scheme, strings.TrimSuffix(u.Host, ":"+u.Port()), u.Port()}
	o.port = cmp.Or(o.port, defaultPorts[scheme])
	return o, u, isPort(o.port) && checkPath(strings.TrimPrefix(u.EscapedPath(), "/")) == nil
}

func (o origin) loopback() bool { return o.scheme == "http" && slices.Contains(loopbackNames, o.host) }

// split parses a canvas's URL. The last result is false if canvases may not show that server or
// file.
func (cfg *Config) split(text string) (origin, *url.URL, bool) {
	if strings.HasPrefix(text, filesScheme+":") {
		return cfg.splitFile(text)
	}
	o, u, ok := splitOrigin(text)
	return o, u, ok && (o.loopback() || slices.ContainsFunc(cfg.Allow, func(a Allowed) bool { return a.takes(o) }))
}

// isPort reports whether text is a port number in canonical form. Ports are compared as text, so
// 0080 must not pass for 80.
func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0 && strconv.FormatUint(n, 10) == text
}

// portOf returns the port in a URL that a client has named. It parses leniently, as browsers do
// (WHATWG URL), because a host may rewrite a client's address before it uses it. For a file the
// port is filesScheme.
func portOf(text string) (string, bool) {
	text = strings.Map(func(r rune) rune {
		switch {
		case r <= ' ':
			return -1
		case r == '\\':
			return '/'
		}
		return r
	}, text)
	scheme, rest, ok := strings.Cut(text, ":")
	scheme = strings.ToLower(scheme)
	if ok && scheme == filesScheme {
		return filesScheme, true
	}
	if !ok || defaultPorts[scheme] == "" {
		return "", false
	}
	rest = strings.TrimLeft(rest, "/")
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		rest = rest[:end]
	}
	port := strings.TrimLeft(rest[strings.LastIndex(rest, ":")+1:], "0")
	if !isPort(port) { // no port, or a part of an IPv6 address
		return defaultPorts[scheme], true
	}
	return port, true
}

// mint returns the ahp-canvas-content address for a canvas's URL.
func mint(instance string, u *url.URL) string {
	a := Address{Instance: instance, Path: strings.TrimPrefix(u.EscapedPath(), "/"), Query: u.RawQuery}
	if u.Fragment != "" {
		return a.String() + "#" + u.EscapedFragment()
	}
	return a.String()
}

func (o origin) url(a Address) string {
	s := o.scheme + "://" + o.host + ":" + o.port + "/" + a.Path
	if a.Query != "" {
		s += "?" + a.Query
	}
	return s
}

// dialAddresses returns the addresses to dial for an origin. They contain a name for DNS only if
// the host's owner has allowed that name.
func (o origin) dialAddresses() []string {
	switch {
	case o.host == "localhost" || strings.HasSuffix(o.host, ".localhost"):
		return []string{"127.0.0.1:" + o.port, "[::1]:" + o.port}
	case o.host == "0.0.0.0":
		return []string{"127.0.0.1:" + o.port}
	}
	return []string{o.host + ":" + o.port}
}
