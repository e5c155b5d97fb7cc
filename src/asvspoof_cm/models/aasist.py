"""aasist"""
