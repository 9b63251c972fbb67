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

	"ahprelay/internal/procgroup"
	_ "ahprelay/test/fixedseed"
)

// TestMain runs the tests. Started with the argument child=, it is the program of a test instead;
// see child.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && strings.HasPrefix(os.Args[1], "child=") {
		runChild(strings.TrimPrefix(os.Args[1], "child="))
		return
	}
	goleak.VerifyTestMain(m)
}

// child returns a command that runs this test binary as a program with the behaviour how of
// runChild.
func child(how string) []string { return []string{os.Args[0], "child=" + how} }

func runChild(how string) {
	switch how {
	case "echo": // copies its input until it ends
		_, _ = io.Copy(os.Stdout, os.Stdin)
	case "host": // answers each request
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			if id, ok := requestID(lines.Bytes()); ok {
				fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":null}`+"\n", id)
			}
		}
	case "deaf": // continues after its input has ended
		fmt.Println(`{"method":"ready"}`)
		time.Sleep(time.Hour)
	case "parent": // starts the deaf program, and waits for its end
		cmd := exec.Command(os.Args[0], "child=deaf")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		_ = cmd.Run()
	case "orphan": // leaves the deaf program, which keeps its output open
		cmd := exec.Command(os.Args[0], "child=deaf")
		cmd.Stdout = os.Stdout
		_ = cmd.Start()
		os.Exit(3)
	case "stray": // leaves the deaf program outside its group, and prints the ID of its process
		cmd := exec.Command(os.Args[0], "child=deaf")
		cmd.Stdout = os.Stdout
		procgroup.OwnSession(cmd)
		_ = cmd.Start()
		fmt.Printf("%d\n", cmd.Process.Pid)
		os.Exit(3)
	case "crash":
		fmt.Println(`{"method":"last words"}`)
		fmt.Fprintln(os.Stderr, "out of luck")
		os.Exit(3)
	case "tell": // prints its arguments, environment and input
		fmt.Fprintf(os.Stderr, "arguments %q\n", os.Args)
		for _, variable := range os.Environ() {
			fmt.Fprintln(os.Stderr, "environment", variable)
		}
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			fmt.Fprintln(os.Stderr, "input", lines.Text())
		}
	case "half": // prints a line without a newline at the end
		fmt.Print(`{"method":"whole"}` + "\n" + `{"method":"half`)
	case "huge":
		fmt.Println(strings.Repeat("x", 100_000))
		time.Sleep(time.Hour)
	}
}

// requestID returns the id of a request from the host-agent's monitor.
func requestID(line []byte) (id string, ok bool) {
	_, rest, ok := bytes.Cut(line, []byte(`"id":`))
	number, _, _ := bytes.Cut(rest, []byte(","))
	return string(number), ok
}
