package contentproxy

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// An origin is a web server on the host's loopback interface, as an http URL
// names it.
type origin struct {
	host string // localhost, 127.0.0.1 or [::1]
	port string // "80" where the URL has none
}

// loopbackNames are the hosts of the URLs that name one: no other way to write
// it, and no name that would have to be looked up.
var loopbackNames = []string{"localhost", "127.0.0.1", "[::1]"}

// splitLoopback takes the URL of a canvas apart, if it names a web server on
// the loopback interface literally.
func splitLoopback(text string) (origin, *url.URL, bool) {
	if !strings.HasPrefix(text, "http://") || len(text) > maxAddress {
		return origin{}, nil, false
	}
	u, err := url.Parse(text)
	if err != nil || u.User != nil {
		return origin{}, nil, false
	}
	o := origin{host: strings.TrimSuffix(u.Host, ":"+u.Port()), port: u.Port()}
	if o.port == "" {
		o.port = "80"
	}
	return o, u, slices.Contains(loopbackNames, o.host) && isPort(o.port) && checkPath(strings.TrimPrefix(u.EscapedPath(), "/")) == nil
}

// isPort reports whether a port is written in the only way that is read here: ports
// are compared as they are written, and 0080 would be dialled as 80.
func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0 && strconv.FormatUint(n, 10) == text
}

// portOf returns the port of whatever a browser, or a host that writes addresses
// anew, may read as an http URL: of any name, in any notation (WHATWG URL).
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
	if !ok || !strings.EqualFold(scheme, "http") {
		return "", false
	}
	rest = strings.TrimLeft(rest, "/")
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		rest = rest[:end]
	}
	port := strings.TrimLeft(rest[strings.LastIndex(rest, ":")+1:], "0")
	if !isPort(port) { // there is none, or it is of an IPv6 address
		return "80", true
	}
	return port, true
}

// mint returns the address in band of a canvas's URL.
func mint(instance string, u *url.URL) string {
	a := Address{Instance: instance, Path: strings.TrimPrefix(u.EscapedPath(), "/"), Query: u.RawQuery}
	if u.Fragment != "" {
		return a.String() + "#" + u.EscapedFragment()
	}
	return a.String()
}

// url returns where the content at an address is.
func (o origin) url(a Address) string {
	s := "http://" + o.host + ":" + o.port + "/" + a.Path
	if a.Query != "" {
		s += "?" + a.Query
	}
	return s
}

// dialAddresses returns what to dial, without asking DNS.
func (o origin) dialAddresses() []string {
	switch o.host {
	case "127.0.0.1":
		return []string{"127.0.0.1:" + o.port}
	case "[::1]":
		return []string{"[::1]:" + o.port}
	}
	return []string{"127.0.0.1:" + o.port, "[::1]:" + o.port}
}
