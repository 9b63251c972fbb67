package acpagent

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// These variables tell a recorder and a replayed agent which paths to replace.
const (
	folderVariable = "ACPAGENT_FOLDER" // folder in which the agent works
	homeVariable   = "ACPAGENT_HOME"
)

// These names replace paths in recordings.
const (
	folderName = "/the/folder"
	homeName   = "/the/home"
	agentsName = "/the/agents" // directory in which the agents are installed
)

// Recorder returns a command that runs an agent and records all messages in dir. Each
// process writes a file: the first writes 1.jsonl, the second 2.jsonl. Names replace
// the paths of the folder and of the home directory.
func Recorder(dir, folder, home string, agent []string) (command, environment []string) {
	return append([]string{os.Args[0]}, agent...), []string{scriptVariable + "=record:" + dir, folderVariable + "=" + folder, homeVariable + "=" + home}
}

// Replayer returns the command of an agent that repeats the recordings in dir. Each
// process repeats the next file. The file counter holds the number of processes so far.
func Replayer(dir, folder, counter string) (command, environment []string) {
	return []string{os.Args[0]}, []string{scriptVariable + "=replay:" + dir, folderVariable + "=" + folder, storeVariable + "=" + counter}
}

// next returns the name of the recording for this process, and increments the number in
// counter.
func next(dir, counter string) (string, error) {
	n := 1
	if text, err := os.ReadFile(counter); err == nil {
		_, _ = fmt.Sscan(string(text), &n)
		n++
	}
	return filepath.Join(dir, fmt.Sprintf("%d.jsonl", n)), os.WriteFile(counter, fmt.Append(nil, n), 0o600)
}

// record runs the agent in the command line, and records its messages in dir.
func record(dir string) error {
	file, err := next(dir, filepath.Join(os.Getenv(homeVariable), ".recorded"))
	if err != nil {
		return err
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	agent := exec.Command(os.Args[1], os.Args[2:]...)
	agent.Stderr = os.Stderr
	in, err := agent.StdinPipe()
	if err != nil {
		return err
	}
	said, err := agent.StdoutPipe()
	if err != nil {
		return err
	}
	if err := agent.Start(); err != nil {
		return err
	}
	paths := strings.NewReplacer(os.Getenv(folderVariable), folderName, os.Getenv(homeVariable), homeName, cmp.Or(os.Getenv("AHP_AGENTS_DIR"), agentsName), agentsName)
	var mu sync.Mutex
	copyLines := func(mark string, to io.WriteCloser, from io.Reader) {
		lines := bufio.NewReaderSize(from, 1<<20)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				_ = to.Close()
				return
			}
			mu.Lock()
			_, _ = io.WriteString(out, mark+paths.Replace(line))
			mu.Unlock()
			_, _ = io.WriteString(to, line)
		}
	}
	go copyLines("> ", in, os.Stdin)
	copyLines("< ", os.Stdout, said)
	return agent.Wait()
}
