// Package matrix reads the permission matrix in auth/gate/testdata/matrix.txt. For each
// method and each kind of token, the matrix has the expected outcome.
package matrix

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"

	"ahprelay/auth"
)

// Tokens lists the kinds of tokens, in the order of the matrix's columns.
var Tokens = []struct {
	Name  string
	Allow auth.Client // authority in the token
}{
	{"look", auth.Client{Access: auth.AccessRead}},
	{"talk", auth.Client{Access: auth.AccessTalk}},
	{"approve", auth.Client{Access: auth.AccessApprove}},
	{"operate", auth.Client{Access: auth.AccessWrite}},
	{"own", auth.Client{Access: auth.AccessAdmin}},
	{"reverse", auth.Client{Access: auth.AccessRead, Reverse: true}},
	{"named", auth.Client{Access: auth.AccessWrite, Methods: []string{"listSessions"}}},
	{"in", auth.Client{Access: auth.AccessWrite, Channels: limited}},
	{"out", auth.Client{Access: auth.AccessWrite, Channels: limited}},
}

var limited = []string{"mock:/s", "mcp://s/*"}

// A Row is a method in the matrix, sent by the client or by the host.
type Row struct {
	Line     int
	FromHost bool
	Request  bool
	Method   string
	Verdicts []string // outcome for each of Tokens; "-": the row has none
	params   string
}

// Name returns the row's line and method, which identify it.
func (r *Row) Name() string { return fmt.Sprintf("line %d, %s", r.Line, r.Method) }

// Message returns the row's message for the token in a column. If it is a request, it
// has the given id.
func (r *Row) Message(token, id int) string {
	session := "s"
	if Tokens[token].Name == "out" {
		session = "t"
	}
	params := strings.ReplaceAll(r.params, "$", session)
	if r.Request {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, r.Method, params)
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`, r.Method, params)
}

// Read reads the matrix from a file.
func Read(path string) (rows []Row, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		first := 3 + len(Tokens)
		if len(fields) <= first || !strings.HasPrefix(fields[first], "{") {
			return nil, fmt.Errorf("%s:%d has too few words; want 12, and params", path, n)
		}
		rows = append(rows, Row{
			Line: n, FromHost: fields[0] == "h", Request: fields[1] == "req", Method: fields[2],
			Verdicts: fields[3:first], params: strings.Join(fields[first:], " "),
		})
	}
	return rows, lines.Err()
}
