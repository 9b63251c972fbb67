//go:build race

package browser_test

import (
	"context"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// TestMain has the tests run without the race detector, where the go command
// was told to use it. What is to be looked at for races are relay, host-agent
// and host, and those are processes that are built with it, in any case: see
// startStackWith. The driver of the browser is not ours, and has had races of
// its own.
func TestMain(*testing.M) {
	// One place, so that nothing is left over. The process becomes the tests.
	program, err := filepath.Abs("../../bin/test/browser.test")
	if err != nil {
		log.Fatal(err)
	}
	if out, err := exec.CommandContext(context.Background(), "go", "test", "-race=false", "-tags=", "-ldflags=-s -w", "-c", "-o", program, ".").CombinedOutput(); err != nil {
		log.Fatalf("build without the race detector: %v\n%s", err, out)
	}
	log.Fatal(syscall.Exec(program, append([]string{program}, os.Args[1:]...), os.Environ()))
}
