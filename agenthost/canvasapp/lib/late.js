// Imported when it is needed.
export const late = 'late';
