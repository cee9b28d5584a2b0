# Installs BUILD afresh to PREFIX, component by component, as a distribution would.
file(REMOVE_RECURSE ${PREFIX})
foreach(component IN ITEMS runtime dev)
  execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX} --component ${component}
                          COMMAND_ERROR_IS_FATAL ANY)
endforeach()
