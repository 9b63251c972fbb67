package hostagent

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	_ "ahprelay/test/fixedseed"
)

// TestMain runs the tests, or the child program of a test; see child.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && strings.HasPrefix(os.Args[1], "child=") {
		runChild(strings.TrimPrefix(os.Args[1], "child="))
		return
	}
	goleak.VerifyTestMain(m)
}

// child returns a command with one of runChild's behaviours.
func child(how string) []string { return []string{os.Args[0], "child=" + how} }

func runChild(how string) {
	switch how {
	case "echo": // until its input ends
		_, _ = io.Copy(os.Stdout, os.Stdin)
	case "host": // answers any request
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			if id, ok := requestID(lines.Bytes()); ok {
				fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":null}`+"\n", id)
			}
		}
	case "deaf": // goes on when its input ends
		fmt.Println(`{"method":"ready"}`)
		time.Sleep(time.Hour)
	case "parent": // of a child that goes on, and waits for it
		cmd := exec.Command(os.Args[0], "child=deaf")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		_ = cmd.Run()
	case "crash":
		fmt.Println(`{"method":"last words"}`)
		fmt.Fprintln(os.Stderr, "out of luck")
		os.Exit(3)
	case "tell": // prints its input
		fmt.Fprintf(os.Stderr, "arguments %q\n", os.Args)
		for _, variable := range os.Environ() {
			fmt.Fprintln(os.Stderr, "environment", variable)
		}
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			fmt.Fprintln(os.Stderr, "input", lines.Text())
		}
	case "half": // a line without its end
		fmt.Print(`{"method":"whole"}` + "\n" + `{"method":"half`)
	case "huge":
		fmt.Println(strings.Repeat("x", 100_000))
		time.Sleep(time.Hour)
	}
}

// requestID returns the id in a monitor's request.
func requestID(line []byte) (id string, ok bool) {
	_, rest, ok := bytes.Cut(line, []byte(`"id":`))
	number, _, _ := bytes.Cut(rest, []byte(","))
	return string(number), ok
}
