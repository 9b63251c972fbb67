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

// Variables of a recorder's and a replayed agent's environment.
const (
	folderVariable = "ACPAGENT_FOLDER" // replaced in recordings
	homeVariable   = "ACPAGENT_HOME"
)

// Names that stand for paths in recordings.
const (
	folderName = "/the/folder"
	homeName   = "/the/home"
	agentsName = "/the/agents" // where the agents are installed
)

// Recorder returns the command that runs an agent and records its messages: in dir,
// with a file for each process, 1.jsonl and so on. Paths of the folder and of the home
// directory are replaced.
func Recorder(dir, folder, home string, agent []string) (command, environment []string) {
	return append([]string{os.Args[0]}, agent...), []string{scriptVariable + "=record:" + dir, folderVariable + "=" + folder, homeVariable + "=" + home}
}

// Replayer returns the command of an agent that replays the recordings in dir: a file
// for each process. counter is a file of the test.
func Replayer(dir, folder, counter string) (command, environment []string) {
	return []string{os.Args[0]}, []string{scriptVariable + "=replay:" + dir, folderVariable + "=" + folder, storeVariable + "=" + counter}
}

// next returns the file of the next process.
func next(dir, counter string) (string, error) {
	n := 1
	if text, err := os.ReadFile(counter); err == nil {
		_, _ = fmt.Sscan(string(text), &n)
		n++
	}
	return filepath.Join(dir, fmt.Sprintf("%d.jsonl", n)), os.WriteFile(counter, fmt.Append(nil, n), 0o600)
}

// record runs an agent and records its messages.
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
