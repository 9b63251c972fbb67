package contentproxy

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// Scheme is the URI scheme of minted addresses, whose content clients read over a canvas's AHP
// channel (Canvas proposal, §10).
const Scheme = "ahp-canvas-content"

// maxAddress is the longest accepted address in bytes.
const maxAddress = 8 << 10

// An Address is a parsed address of canvas content:
// ahp-canvas-content:/<instanceId>/<path>?<query>.
type Address struct {
	Instance string // decoded
	Path     string // as written, without the leading slash: percent-encoded
	Query    string // as written, without the question mark
}

// ParseAddress parses an address. To keep reads inside the canvas, it returns an error if the path,
// percent-decoded once, contains a backslash, a control character or a ".." segment.
func ParseAddress(text string) (Address, error) {
	rest, ok := strings.CutPrefix(text, Scheme+":/")
	switch {
	case !ok:
		return Address{}, fmt.Errorf("address: want %s:/<instanceId>/<path>", Scheme)
	case len(text) > maxAddress:
		return Address{}, fmt.Errorf("address: %d bytes exceed the limit of %d", len(text), maxAddress)
	}
	rest, _, _ = strings.Cut(rest, "#")
	rest, query, _ := strings.Cut(rest, "?")
	segment, path, _ := strings.Cut(rest, "/")
	instance, err := url.PathUnescape(segment)
	if err != nil {
		return Address{}, errors.New("address: invalid percent-encoding in the instance")
	}
	if instance == "" {
		return Address{}, errors.New("address: instance missing")
	}
	if strings.ContainsFunc(query, control) {
		return Address{}, errors.New("address: control character in the query")
	}
	return Address{instance, path, query}, checkPath(path)
}

// checkPath returns an error if a percent-encoded path is malformed or could lead out of a canvas.
func checkPath(path string) error {
	decoded, err := url.PathUnescape(path)
	switch {
	case err != nil:
		return errors.New("address: invalid percent-encoding in the path")
	case strings.ContainsFunc(decoded, control), strings.ContainsRune(decoded, '\\'):
		return errors.New("address: control character or backslash in the path")
	case slices.Contains(strings.Split(decoded, "/"), ".."):
		return errors.New(`address: ".." in the path`)
	}
	return nil
}

func control(r rune) bool { return r < ' ' || r == 0x7f }

// String formats the address.
func (a Address) String() string {
	s := Scheme + ":/" + url.PathEscape(a.Instance) + "/" + a.Path
	if a.Query != "" {
		s += "?" + a.Query
	}
	return s
}
