package fair

// Known returns of how many something is remembered.
func (t *Turns) Known() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.root.children)
}
