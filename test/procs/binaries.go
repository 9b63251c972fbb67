package procs

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
)

// Names of the programs.
const (
	RelayProgram = "relay"
	AgentProgram = "host-agent"
	HostProgram  = "refhost"
	NATSProgram  = "nats-server"
)

// Build builds all programs into a directory.
func Build(ctx context.Context, dir string) error {
	for program, pkg := range map[string]string{
		RelayProgram: "ahprelay/cmd/relay",
		AgentProgram: "ahprelay/cmd/host-agent",
		HostProgram:  "ahprelay/test/cmd/refhost",
		NATSProgram:  "github.com/nats-io/nats-server/v2",
	} {
		out, err := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(dir, program), pkg).CombinedOutput()
		if err != nil {
			return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
	}
	return nil
}
